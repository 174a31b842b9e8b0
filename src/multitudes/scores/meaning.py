"""What each score says, and which way is better."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Meaning(NamedTuple):
    """A score in one line."""

    better: Literal["higher", "lower", ""]
    about: str


CRITERIA = ("msp", "max_logit", "entropy", "mutual_information", "variation_ratio", "energy")
"""By what a classification is told to be out of distribution; as scores all are larger for what is more so."""

SPREADS = ("variance", "epistemic")
"""By what a regression is."""

MEANINGS = {
    "accuracy": Meaning("higher", "share of right labels"),
    "exact_match": Meaning("higher", "share of examples all of whose labels are right"),
    "top5": Meaning("higher", "share of examples whose label is among the five most probable"),
    "nll": Meaning("lower", "−log of the mixture's probability of the target, in nats"),
    "gibbs_nll": Meaning("lower", "the same of a member taken at random"),
    "brier": Meaning("lower", "squared distance of probabilities and truth, summed over classes"),
    "ece": Meaning("lower", "expected calibration error: bins of equal width, by the label's probability"),
    "mce": Meaning("lower", "calibration error of the worst bin"),
    "ace": Meaning("lower", "calibration error over bins of equally many examples"),
    "classwise_ece": Meaning("lower", "calibration error of each class's probability, averaged over classes"),
    "aurc": Meaning("lower", "area under risk against coverage"),
    "miou": Meaning("higher", "intersection over union, averaged over classes"),
    "disagreement": Meaning("", "share of pairs of members with different labels"),
    "kl_diversity": Meaning("", "KL divergence between two members, over all pairs"),
    "member_accuracy": Meaning("higher", "accuracy of a member, averaged"),
    "member_nll": Meaning("lower", "NLL of a member, averaged (equal to gibbs_nll)"),
    "idmi": Meaning("", "mutual information in distribution"),
    "oodmi": Meaning("", "mutual information out of distribution"),
    "auroc": Meaning("higher", "how often of one in and one out of distribution the right one is told"),
    "aupr": Meaning("higher", "average precision with out of distribution as positive"),
    "aupr_in": Meaning("higher", "average precision with in distribution as positive"),
    "fpr95": Meaning("lower", "share in distribution that is flagged where 95 % of what is out are found"),
    "fpr95_in": Meaning("lower", "share out of distribution that passes where 95 % of what is in pass"),
    "rmse": Meaning("lower", "root of the mean squared error"),
    "mae": Meaning("lower", "mean absolute error"),
    "gaussian_nll": Meaning("lower", "NLL of a Gaussian with the mixture's mean and variance"),
    "lpd": Meaning("higher", "log density of the mixture at the target"),
    "crps": Meaning("lower", "continuous ranked probability score of the mixture"),
    "coverage": Meaning("", "share of targets inside of the interval; its level is best"),
    "interval_width": Meaning("lower", "mean width of the interval"),
    "member_rmse": Meaning("lower", "RMSE of a member, averaged"),
    "epistemic_std": Meaning("", "mean standard deviation of the members' means"),
    "stability": Meaning("higher", "share of anchors all of whose frames are right"),
    "cAcc": Meaning("higher", "accuracy, averaged over corruptions and severities"),
    "cNLL": Meaning("lower", "NLL, averaged over corruptions and severities"),
    "cECE": Meaning("lower", "ECE, averaged over corruptions and severities"),
    "rAcc": Meaning("higher", "accuracy on a shifted set"),
    "rNLL": Meaning("lower", "NLL on a shifted set"),
    "rECE": Meaning("lower", "ECE on a shifted set"),
    "mCE": Meaning("lower", "error under the 15 standard corruptions against a baseline's, averaged"),
    "rmCE": Meaning("lower", "the same of what corruption adds to the error"),
}


def meaning(key: str) -> Meaning:
    """What a score says, by its key: `accuracy`, `auroc/msp`, `svhn/auroc/msp`, `fog/3/nll`."""
    return next((MEANINGS[part] for part in reversed(key.split("/")) if part in MEANINGS), Meaning("", ""))
