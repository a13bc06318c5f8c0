"""Behind `sparse24.jax`."""
