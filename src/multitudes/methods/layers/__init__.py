"""Layers that several methods put into a network."""
