"""Comparisons of methods on your network: costs are measured, results of papers are looked up."""
