"""Resize: makes a network thinner or wider, by its constructor, its configuration or its channels."""
