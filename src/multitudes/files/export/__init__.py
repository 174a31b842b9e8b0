"""Exports an ensemble as one graph of standard operations, with its uncertainty inside."""
