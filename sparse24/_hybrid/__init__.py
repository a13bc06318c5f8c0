"""Products of hybrid matrices: their paths, which is chosen, and how it is launched."""
