"""What each score measures, which direction is better, and which class is positive."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Meaning(NamedTuple):
    """What a score measures, in one line."""

    better: Literal["higher", "lower", ""]
    """Which direction is better; empty where neither is."""
    about: str


OOD_NOTE = "OOD is the positive class; for aupr_in and fpr95_in it is in-distribution."
"""Which class is positive in OOD detection."""

ERROR_NOTE = "Wrong predictions are the positive class."
"""Which class is positive in the detection of errors."""

ARROWS = {"higher": "↑", "lower": "↓", "": ""}
"""The arrow that tables show for each direction."""


CRITERIA = ("msp", "max_logit", "entropy", "mutual_information", "variation_ratio", "energy")
"""OOD scores of a classification. As criteria all are larger for examples that look more out-of-distribution."""

ERROR_CRITERIA = ("msp", "entropy", "mutual_information")
"""Criteria whose detection of errors is scored."""

SPREADS = ("variance", "epistemic")
"""OOD scores of a regression."""

DISTANCES = ("mahalanobis", "knn", "vim")
"""OOD scores of features, which `scores.outliers` computes."""

ALL_CRITERIA = (*CRITERIA, *SPREADS, *DISTANCES)
"""Every OOD score."""

MEANINGS = {
    "accuracy": Meaning("higher", "share of correct labels"),
    "exact_match": Meaning("higher", "share of examples with all labels correct"),
    "top5": Meaning("higher", "share of examples whose label is among the five most probable classes"),
    "balanced_accuracy": Meaning("higher", "share of correct labels of each class, averaged over classes"),
    "f1": Meaning("higher", "F1 of each class, averaged over classes; of yes in a binary task"),
    "class_auroc": Meaning("higher", "AUROC of each class against the others, averaged over classes"),
    "class_aupr": Meaning("higher", "average precision of each class against the others, averaged over classes"),
    "error_auroc": Meaning("higher", "probability that a random wrong prediction is less certain than a random right one"),
    "error_aupr": Meaning("higher", "average precision with wrong predictions as the positive class"),
    "nll": Meaning("lower", "negative log-likelihood of the target under the mixture, in nats"),
    "gibbs_nll": Meaning("lower", "expected NLL of a random member"),
    "brier": Meaning("lower", "squared error of the probabilities, summed over classes"),
    "ece": Meaning("lower", "expected calibration error: confidence against accuracy, in bins of equal width"),
    "mce": Meaning("lower", "calibration error of the worst bin"),
    "ace": Meaning("lower", "expected calibration error in bins of equally many examples"),
    "classwise_ece": Meaning("lower", "expected calibration error of each class, averaged over classes"),
    "aurc": Meaning("lower", "area under the risk-coverage curve"),
    "miou": Meaning("higher", "intersection over union, averaged over classes"),
    "disagreement": Meaning("", "share of pairs of members with different labels"),
    "kl_diversity": Meaning("", "KL divergence between two members, averaged over pairs"),
    "member_accuracy": Meaning("higher", "mean accuracy of the members"),
    "member_nll": Meaning("lower", "mean NLL of the members (equal to gibbs_nll)"),
    "mean_mutual_information": Meaning("", "mutual information of label and member, averaged over the set's examples"),
    "auroc": Meaning("higher", "probability that a random OOD example looks more OOD than a random in-distribution one"),
    "aupr_out": Meaning("higher", "average precision with OOD as the positive class"),
    "aupr_in": Meaning("higher", "average precision with in-distribution as the positive class"),
    "fpr95": Meaning("lower", "share of in-distribution examples taken for OOD where 95 % of OOD examples are detected"),
    "fpr95_in": Meaning("lower", "share of OOD examples taken for in-distribution where 95 % of in-distribution examples are"),
    "rmse": Meaning("lower", "root of the mean squared error"),
    "mae": Meaning("lower", "mean absolute error"),
    "gaussian_nll": Meaning("lower", "NLL of a Gaussian with the mixture's mean and variance"),
    "lpd": Meaning("higher", "log density of the mixture at the target: −nll"),
    "crps": Meaning("lower", "continuous ranked probability score of the mixture"),
    "coverage": Meaning("", "share of targets inside the interval; best is its level"),
    "interval_width": Meaning("lower", "mean width of the interval"),
    "member_rmse": Meaning("lower", "mean RMSE of the members"),
    "epistemic_std": Meaning("", "mean standard deviation of the members' means"),
    "stability": Meaning("higher", "share of anchor frames with all neighbouring frames correct"),
    "cAcc": Meaning("higher", "accuracy, averaged over corruptions and severities"),
    "cNLL": Meaning("lower", "NLL, averaged over corruptions and severities"),
    "cECE": Meaning("lower", "ECE, averaged over corruptions and severities"),
    "rAcc": Meaning("higher", "accuracy on a shifted set"),
    "rNLL": Meaning("lower", "NLL on a shifted set"),
    "rECE": Meaning("lower", "ECE on a shifted set"),
    "CE": Meaning("lower", "error under a corruption over a baseline's"),
    "rCE": Meaning("lower", "increase of the error by a corruption over a baseline's increase"),
    "mCE": Meaning("lower", "error under the 15 standard corruptions over a baseline's, averaged"),
    "rmCE": Meaning("lower", "increase of the error by corruption over a baseline's increase, averaged"),
}


def meaning(key: str) -> Meaning:
    """Returns the meaning of a score by its key, such as `accuracy`, `auroc/msp`, `svhn/auroc/msp` or `fog/3/nll`."""
    return next((MEANINGS[part] for part in reversed(key.split("/")) if part in MEANINGS), Meaning("", ""))


def glossary() -> str:
    """Returns all scores with their direction and meaning, and how those of OOD sets are named, for help()."""
    lines = "\n".join(f"    {name:<24}{ARROWS[one.better] or ' '} {one.about}" for name, one in MEANINGS.items())
    return f"""Scores; ↑ higher is better, ↓ lower is better:

{lines}

Scores of an OOD set are called SET/SCORE/CRITERION, as in `svhn/auroc/msp`.
{OOD_NOTE}
Every criterion is larger for examples that look more OOD: msp (1 − the largest probability), max_logit (minus the largest
logit), entropy, mutual_information, variation_ratio and energy; variance and epistemic variance in a regression. Predictions
that `multitudes.scores.outliers` returned have mahalanobis, knn and vim too.
Detected errors are `error_auroc/CRITERION` and `error_aupr/CRITERION`. {ERROR_NOTE}
A corruption's scores are called `fog/3/accuracy`, those of another shifted set `sketches/rAcc`.
"""
