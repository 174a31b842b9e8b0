"""Scores: metrics of predictions and their uncertainty, as functions of plain tensors."""

from multitudes.scores.scores import Scores as Scores
