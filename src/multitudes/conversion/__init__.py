"""Conversion: a model, a method and an example become an ensemble, planned, checked and costed."""
