"""Anatomy: how a network is built: what runs first and last, which layers are known, how it starts."""
