"""Proof: tries executors on a template, and finds out which of them are right, before any is used."""
