"""Behind `sparse24.torch`."""
