"""Training: fit, recipes, and the folder of a run."""
