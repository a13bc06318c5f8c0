"""Behind `sparse24.distributed`."""
