"""Files: saves and loads ensembles."""
