"""Resize: the same architecture thinner or wider, by its constructor, its configuration or its channels."""
