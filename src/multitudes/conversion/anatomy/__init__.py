"""Anatomy: how a network is built: its first and last layers, the known layers, its initialisation."""
