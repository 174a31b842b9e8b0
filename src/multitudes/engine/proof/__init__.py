"""Proof: which executors are right for a template, tried before they are used."""
