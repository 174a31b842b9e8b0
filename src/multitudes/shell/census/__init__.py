"""The census: which networks of which libraries every method converts, and whether the ensembles are right."""
