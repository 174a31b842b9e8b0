"""Training: fit, its recipes, and the folder of a run."""
