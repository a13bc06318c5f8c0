"""Behind `sparse24.schedule`."""
