"""Scores: how good predictions and their uncertainties are, as functions of plain tensors."""

from multitudes.scores.scores import Scores as Scores
