"""Scores: metrics of predictions and their uncertainty, as functions of plain tensors."""

from multitudes.scores.outliers import outliers as outliers
from multitudes.scores.runs import over_runs as over_runs
from multitudes.scores.scores import Scores as Scores
from multitudes.scores.severities import mean_over_corruptions as mean_over_corruptions
