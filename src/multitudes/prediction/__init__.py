"""Prediction: members' answers, and what they say together."""
