"""Prediction: the members' outputs on a dataset, their mixture and its uncertainty."""
