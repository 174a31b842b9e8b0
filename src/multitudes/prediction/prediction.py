"""Prediction: the members' outputs on a set of examples, their mixture and its uncertainty.

Members' outputs are stored as given, under `pred.members`. Everything else is computed from the mixture on first access, in
pieces of bounded size. The task says what the outputs mean; it is never guessed from their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multitudes.data.dataset import Data
from multitudes.data.labels import as_target_tensor
from multitudes.errors import FileError, InputError
from multitudes.lazy_names import meant
from multitudes.prediction import uncertainty
from multitudes.prediction.features import Features
from multitudes.prediction.members import Members
from multitudes.prediction.targets import members_first, reshaped
from multitudes.prediction.tasks import checked_task
from multitudes.prediction.temperature import Calibrator, checked_calibrator
from multitudes.prediction.values import (
    CLASSES,
    Remap,
    as_member_tensor,
    check_names,
    check_values,
    describe,
    flatten_examples,
    pooled,
    pooled_logs,
    sharpened,
    with_classes_second,
)

NOT_DESCRIBED = ("probs", "logs", "mean", "aleatoric", "epistemic")
"""Names of cached tensors that `described` does not return."""

OTHER_NAMES = {
    "probabilities": "probs",
    "classes_": "labels",
    "predictions": "labels",
    "class_labels": "labels",
    "quantile": "interval",
}
"""Names that an attribute of a prediction has elsewhere."""
CRITERION = "criterion "
"""What names of OOD scores from features begin with in a file."""
PIECE = 1 << 20
"""Numbers in one piece of members' outputs: about as many as fit into a processor's cache."""


class Prediction:
    """The outputs of M members on N examples.

    Pass either `logits` or `probs` for classification: ``[M, N, K, ...]`` for task 'classes' (`class_axis` is the class axis of
    one member's output), ``[M, N, ...]`` for 'binary' and 'multilabel'. Pass `mean`, and `variance` if there is one, for
    regression: ``[M, N, ...]``. Further axes are pixels or tokens. `targets` ``[N, ...]`` are optional; a label `ignore` marks
    entries of them that do not count, as -100 always does.

    >>> pred = Prediction(logits=torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]]))
    >>> pred
    Prediction(classes: 2 members, 2 examples, 2 classes)
    >>> pred.labels.tolist(), pred.disagreement.tolist()
    ([0, 0], [0.0, 1.0])
    """

    ignore: int | None = None
    """Label of targets that do not count, besides -100; `predict` takes it from the dataset."""

    features: Features | None = None
    """The inputs of the members' last layers, if `predict` was called with features=True."""

    criteria: Mapping[str, Tensor] = MappingProxyType({})
    """OOD scores of each example ``[N]`` that were computed from features, by name; `multitudes.scores.outliers` adds them."""

    def __init__(
        self,
        *,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        mean: Tensor | None = None,
        variance: Tensor | None = None,
        task: str | None = None,
        class_axis: int = 1,
        targets: Any = None,
        ignore: int | None = None,
        calibrator: Calibrator | None = None,
    ) -> None:
        arguments = {"logits": logits, "probs": probs, "mean": mean, "variance": variance}
        values = {name: as_member_tensor(name, value) for name, value in arguments.items() if value is not None}
        self.task = checked_task(
            task or ("gaussian" if variance is not None else "regression" if mean is not None else "classes")
        )
        check_names(self.task, values)
        if self.task == "classes":
            values = {name: with_classes_second(value, class_axis) for name, value in values.items()}
        if self.task == "binary":
            values = {
                name: value.squeeze(2) if value.ndim > 2 and value.shape[2] == 1 else value for name, value in values.items()
            }
        for name, value in values.items():
            check_values(name, value, self.task)
        self.ignore = ignore
        self.calibrator = calibrator
        self.temperature = 1.0
        if calibrator is not None:
            values, self.temperature = calibrator.applied(values, self.task)
        first = next(iter(values.values()))
        self._values = values
        self._count = first.shape[0]
        self._shape = torch.Size([first.shape[1], *first.shape[3:]]) if self.task == "classes" else first.shape[1:]
        self._computed: dict[str, Tensor] = {}
        self.targets = None if targets is None else as_target_tensor(targets)
        if self.targets is not None and (not self.targets.ndim or len(self.targets) != len(self)):
            hint = members_first(self, self.targets) or ": give one target per example"
            raise InputError(f"targets have shape {list(self.targets.shape)} for {len(self)} examples{hint}")

    @property
    def members(self) -> Members:
        """Members' outputs, ``[M, N, ...]``: `pred.members.logits`, `.probs`, `.labels`; `.mean`, `.variance`."""
        if not self.has_members:
            raise InputError("this prediction has no members' outputs, only moments: call predict with moments_only=False")
        return Members(self._values, self.task)

    @property
    def has_members(self) -> bool:
        """Whether members' outputs are stored, not only the moments of their mixture."""
        return bool(self._values)

    @property
    def remap(self) -> Remap | None:
        """What calibration does to the mixture's log probabilities, ``[..., K]``; None for nothing."""
        if self.temperature != 1.0:
            return partial(sharpened, temperature=self.temperature)
        return None if self.calibrator is None else self.calibrator.mapping

    @property
    def has_log_density(self) -> bool:
        """Whether `log_density` is known at the targets: members have variances, or `predict` computed it with moments_only."""
        return "variance" in self._values or "log_density" in self._computed

    @property
    def count(self) -> int:
        """The number of members, M."""
        return self._count

    @property
    def shape(self) -> torch.Size:
        """The shape of the targets: ``[N]``, ``[N, H, W]`` for pixels, ``[N, D]`` for several labels or numbers."""
        return self._shape

    if not TYPE_CHECKING:  # a type checker that saw it would take every attribute for one

        def __getattr__(self, name: str) -> Any:
            names = [one for one in dir(type(self)) if not one.startswith("_")]
            if name in names:
                return object.__getattribute__(self, name)  # raises again what the property raised
            hint = f": did you mean {OTHER_NAMES[name]!r}?" if name in OTHER_NAMES else meant(name, names)
            if name == "uncertainty":
                numbers = self.task in ("gaussian", "regression")
                hint = (
                    f": there are {'std, aleatoric and epistemic' if numbers else 'entropy, confidence and mutual_information'}"
                )
            raise AttributeError(f"a Prediction has no {name!r}{hint}")

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def classes(self) -> int:
        """The number of classes, K; 2 for binary and multilabel tasks."""
        self._check_classification("classes")
        if self.task != "classes":
            return 2
        return next(iter(self._values.values())).shape[2] if self._values else self.logs.shape[-1]

    def pieces(self, size: int = PIECE) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """Yields members' outputs in pieces of whole examples: rows, and the outputs as `flatten_examples` returns them."""
        first = next(iter(self.members.values()))
        step = max(1, size // max(1, math.prod(first.shape[2:]) * first.shape[0]))
        for start in range(0, len(self), step):
            rows = slice(start, min(start + step, len(self)))
            yield rows, {name: flatten_examples(value[:, rows], self.task) for name, value in self._values.items()}

    def described(self) -> dict[str, Tensor]:
        """Returns label, confidence and all uncertainties of a classification by name, in the shape of the targets."""
        self._check_classification("probabilities")
        if "labels" not in self._computed:
            parts = [describe(values, self.remap) for _, values in self.pieces()]
            if not parts:
                empty = {name: value.flatten(1)[:, :0] for name, value in self._values.items() if self.task != "classes"}
                empty = empty or {name: value.new_zeros(self.count, 0, self.classes) for name, value in self._values.items()}
                parts = [describe(empty, None)]
            for name in parts[0]:
                self._computed[name] = torch.cat([part[name] for part in parts]).reshape(self.shape)
        return {name: value for name, value in self._computed.items() if name not in NOT_DESCRIBED}

    def _check_classification(self, what: str) -> None:
        if self.task not in CLASSES:
            raise InputError(f"task={self.task!r} has no {what}: use mean, variance or interval(0.9)")

    def _statistic(self, name: str) -> Tensor:
        statistics = self.described()
        if name not in statistics:
            raise InputError(f"{name} needs logits, but this prediction was made from probs: use Prediction(logits=...)")
        return statistics[name]

    @property
    def probs(self) -> Tensor:
        """The mixture's probabilities: ``[N, K, ...]`` for classes; the probability of "yes" ``[N, ...]`` for other tasks."""
        self._check_classification("probabilities")
        if "probs" not in self._computed:
            parts = [pooled(values, self.remap) for _, values in self.pieces()] if self.has_members else [self.logs.exp()]
            probs = torch.cat(parts) if parts else torch.zeros(0, self.classes, dtype=next(iter(self._values.values())).dtype)
            probs = probs.reshape(*self.shape, self.classes)
            self._computed["probs"] = probs.movedim(-1, 1) if self.task == "classes" else probs[..., 1]
        return self._computed["probs"]

    @property
    def logs(self) -> Tensor:
        """The mixture's log probabilities with classes last, ``[N, ..., K]``: finite where a probability underflows to 0."""
        if "logs" in self._computed:
            return self._computed["logs"]
        if not self.has_members:
            probs = self._computed["probs"].double()
            return (probs.movedim(1, -1) if self.task == "classes" else torch.stack([1 - probs, probs], -1)).log()
        parts = [pooled_logs(values, self.remap) for _, values in self.pieces()]
        logs = torch.cat(parts) if parts else torch.zeros(0, self.classes, dtype=torch.float64)
        return logs.reshape(*self.shape, self.classes)

    def __getitem__(self, rows: Any) -> Prediction:
        """Returns the prediction of some examples, chosen by a slice, a mask ``[N]`` or their indices."""
        if not isinstance(rows, slice):
            rows = torch.as_tensor(rows).cpu()
            rows = torch.arange(len(self))[rows if rows.numel() else rows.long()].reshape(-1)
        new = self._with(
            {name: value[:, rows] for name, value in self._values.items()},
            {name: value[rows] for name, value in self._computed.items()},
            None if self.targets is None else self.targets[rows],
        )
        new.features = self.features and self.features.rows(rows)
        return new.with_criteria({name: value[rows] for name, value in self.criteria.items()})

    def with_criteria(self, criteria: Mapping[str, Tensor]) -> Prediction:
        """Returns this prediction with these OOD scores ``[N]`` by name, in place of others that were added to it."""
        new = self._with(self._values, self._computed, self.targets)
        new.criteria = dict(criteria)
        return new

    def subset(self, members: Sequence[int]) -> Prediction:
        """Returns the prediction of some members. It has no calibration of the mixture, which was fitted to all members."""
        values = self.members
        if not len(members):
            raise InputError("subset([]) leaves no members: name at least one")
        new = self._with({name: value[list(members)] for name, value in values.items()}, {}, self.targets)
        new.temperature, new.calibrator = 1.0, self.calibrator and self.calibrator.subset(members)
        new.features, new.criteria = self.features and self.features.subset(members), {}
        return new

    def in_original_units(self, data: Data) -> Prediction:
        """Undoes the standardisation of `data`'s targets in a regression: means, variances, densities and own targets.

        Other predictions, and those of data that is not standardised, are returned as they are.
        """
        if not isinstance(data, Data):
            raise InputError(
                f"in_original_units takes the Data whose targets it standardised, such as data.uci(...), not a "
                f"{type(data).__name__}: with a mean and deviation of your own, pred.mean * std + mean and pred.std * std"
            )
        if data.target_std is None or self.task in CLASSES:
            return self

        def restored(name: str, value: Tensor) -> Tensor:
            std = data.target_std.to(value)
            return data.original(value) if name == "mean" else value - std.log() if name == "log_density" else value * std**2

        values = {name: restored(name, value) for name, value in self._values.items()}
        computed = {name: restored(name, value) for name, value in self._computed.items()}
        return self._with(values, computed, None if self.targets is None else data.original(self.targets))

    def calibrated(self, calibrator: Calibrator) -> Prediction:
        """Returns this prediction with the calibrator applied."""
        checked_calibrator(calibrator, "calibrated")
        if self.calibrator is not None:
            raise InputError("this prediction is already calibrated: set ens.calibrator = None and predict again")
        values, temperature = calibrator.applied(self.members, self.task)
        new = self._with(values, {}, self.targets)
        new.calibrator, new.temperature = calibrator, temperature
        return new

    @classmethod
    def cat(cls, parts: Sequence[Prediction]) -> Prediction:
        """Concatenates predictions of the same members along the examples."""
        kinds = {
            (p.task, p.count, p.calibrator, p.ignore, *p._values, p.shape[1:], p.task in CLASSES and p.classes, *p.criteria)
            for p in parts
        }
        if len(kinds) != 1:
            raise InputError(
                "cat needs predictions of the same task, members, calibrator, ignored label and shape"
                + (f"; parts= mixes {len(kinds)} different kinds" if kinds else ", but parts= is empty")
            )
        targets = [part.targets for part in parts]
        moments = [part._computed if not part.has_members else {} for part in parts]
        new = parts[0]._with(
            {name: torch.cat([part._values[name] for part in parts], 1) for name in parts[0]._values},
            {name: torch.cat([part[name] for part in moments]) for name in moments[0]},
            None if any(t is None for t in targets) else torch.cat(targets),  # type: ignore[arg-type]
        )
        new.features = Features.cat([part.features for part in parts])
        return new.with_criteria({name: torch.cat([part.criteria[name] for part in parts]) for name in parts[0].criteria})

    @classmethod
    def of_moments(cls, task: str, count: int, moments: Mapping[str, Tensor], targets: Any = None) -> Prediction:
        """Returns a prediction without members' outputs.

        moments   for classification the tensors of `described` and "logs" or "probs"; for regression "mean", "aleatoric",
                  "epistemic" and optionally "log_density", at the targets
        """
        new = cls.__new__(cls)
        shape = moments["labels"].shape if task in CLASSES else moments["mean"].shape
        vars(new).update(task=checked_task(task), calibrator=None, temperature=1.0, _values={}, _count=count, _shape=shape)
        vars(new).update(_computed=dict(moments), targets=None if targets is None else torch.as_tensor(targets))
        return new

    def _with(self, values: Mapping[str, Tensor], computed: Mapping[str, Tensor], targets: Tensor | None) -> Prediction:
        """Returns a copy with other tensors, which are not checked again."""
        new = type(self).__new__(type(self))
        vars(new).update(vars(self), _values=dict(values), _computed=dict(computed), targets=targets)
        if values:
            first = next(iter(values.values()))
            shape = [first.shape[1], *first.shape[3:]] if self.task == "classes" else first.shape[1:]
            vars(new).update(_count=first.shape[0], _shape=torch.Size(shape))
        else:
            vars(new)["_shape"] = next(iter(computed.values())).shape[:1] + self._shape[1:]
        return new

    def to_tensors(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns the settings (for JSON) and the tensors from which `from_tensors` rebuilds this prediction."""
        about = {"task": self.task, "count": self.count, "temperature": self.temperature, "members": self.has_members}
        about["ignore"] = self.ignore
        about["calibrator"] = None if self.calibrator is None else self.calibrator.settings()
        repeated = {"probs"} if "logs" in self._computed else set()
        tensors = self._values or {name: value for name, value in self._computed.items() if name not in repeated}
        beside = {"targets": self.targets, **{CRITERION + name: value for name, value in self.criteria.items()}}
        if self.features is not None:
            beside |= {"features": self.features.values, "origins": self.features.origins}
        return about, {**tensors, **{name: value for name, value in beside.items() if value is not None}}

    @classmethod
    def from_tensors(cls, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Prediction:
        """Rebuilds a prediction from the two results of `to_tensors`."""
        criteria = {name.removeprefix(CRITERION): value for name, value in tensors.items() if name.startswith(CRITERION)}
        beside = {"targets", "features", "origins", *(CRITERION + name for name in criteria)}
        values = {name: value for name, value in tensors.items() if name not in beside}
        if about["members"]:
            new = cls(**values, task=about["task"], targets=tensors.get("targets"))  # type: ignore[arg-type]
        else:
            new = cls.of_moments(about["task"], about["count"], values, tensors.get("targets"))
        new.temperature, new.ignore = float(about["temperature"]), about.get("ignore")
        new.calibrator = None if about["calibrator"] is None else Calibrator(**about["calibrator"])
        new.features = Features(tensors["features"], tensors.get("origins")) if "features" in tensors else None
        return new.with_criteria(criteria)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the prediction and its targets to one safetensors file."""
        from multitudes.storage import save_tensors

        save_tensors(path, "prediction", *self.to_tensors())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Prediction:
        """Reads a prediction from a file that `save` wrote."""
        from multitudes.storage import load_tensors

        about, tensors = load_tensors(path, "prediction")
        try:
            return cls.from_tensors(about, tensors)
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{path} holds no valid prediction: {error}. Write it again with pred.save") from error

    def __repr__(self) -> str:
        sizes = [f"{self.count} member{'s' if self.count > 1 else ''}", f"{len(self):,} examples"]
        sizes += [f"{self.classes} classes"] if self.task == "classes" else []
        sizes += [f"{' × '.join(map(str, self.shape[1:]))} each"] if len(self.shape) > 1 else []
        return f"Prediction({self.task}: {', '.join(sizes)}{'' if self.has_members else ', moments only'})"

    @property
    def labels(self) -> Tensor:
        """The most probable class; for binary and multilabel tasks 1 for yes and 0 for no."""
        return self._statistic("labels")

    @property
    def confidence(self) -> Tensor:
        """The mixture's probability of the predicted label."""
        return self._statistic("confidence")

    @property
    def margin(self) -> Tensor:
        """The probability of the most probable class minus that of the second most probable."""
        return self._statistic("margin")

    @property
    def entropy(self) -> Tensor:
        """The entropy of the mixture in nats: total uncertainty."""
        return self._statistic("entropy")

    @property
    def expected_entropy(self) -> Tensor:
        """The mean entropy of the members in nats: aleatoric uncertainty."""
        return self._statistic("expected_entropy")

    @property
    def mutual_information(self) -> Tensor:
        """The entropy of the uncalibrated mixture minus the members' mean entropy: epistemic uncertainty."""
        return self._statistic("mutual_information")

    @property
    def variation_ratio(self) -> Tensor:
        """The share of members that do not vote for the majority label."""
        return self._statistic("variation_ratio")

    @property
    def disagreement(self) -> Tensor:
        """The share of pairs of members that predict different labels."""
        return self._statistic("disagreement")

    @property
    def max_logit(self) -> Tensor:
        """The largest entry of the members' mean logits; smaller for out-of-distribution inputs."""
        return self._statistic("max_logit")

    @property
    def energy(self) -> Tensor:
        """The members' mean of −log Σ exp logits; larger for OOD inputs. A binary logit z counts as logits −z/2 and z/2."""
        return self._statistic("energy")

    @property
    def mean(self) -> Tensor:
        """The mixture's mean, ``[N, ...]``."""
        return self._moment("mean")

    @property
    def aleatoric(self) -> Tensor:
        """The mean of the members' variances: the noise of an observation. 0 if members predict no variance."""
        return self._moment("aleatoric")

    @property
    def epistemic(self) -> Tensor:
        """The variance of the members' means: their disagreement."""
        return self._moment("epistemic")

    @property
    def variance(self) -> Tensor:
        """The mixture's variance, aleatoric + epistemic."""
        self._check_regression("variance")
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """The mixture's standard deviation."""
        self._check_regression("std")
        return self.variance.sqrt()

    def _check_regression(self, what: str) -> None:
        if self.task in CLASSES:
            raise InputError(f"task={self.task!r} has no {what}: use probs, labels or entropy")

    def _moment(self, name: str) -> Tensor:
        self._check_regression(name)
        if name not in self._computed:
            self._computed.update(uncertainty.moments(self._values["mean"], self._values.get("variance")))
        return self._computed[name]

    def _gaussians(self, caller: str) -> tuple[Tensor, Tensor]:
        """Returns members' means and variances, ``[M, N, ...]`` each."""
        self._moment("mean")
        if "variance" not in self.members:
            raise InputError(
                f"{caller} needs variances, but these members predict only means: train with task='gaussian', or give the "
                "precision of an observation, predict(..., tau_output=...)"
            )
        return self._values["mean"], self._values["variance"]

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Returns the lower and upper end of the mixture's central interval of probability `level`, ``[N, ...]`` each.

        Exact if members' variances are known. Otherwise it is that of a Gaussian with the mixture's mean and variance.
        """
        if not 0 < level < 1:
            raise InputError(f"level={level} must be between 0 and 1, such as 0.95")
        self._check_regression("interval")
        if "variance" not in self._values and self.count == 1 and not bool((self.variance > 0).any()):
            raise InputError(
                "interval needs an uncertainty: a single network without variances has none. Train with task='gaussian', or "
                "use several members"
            )
        if "variance" in self._values:
            mean, variance = self._gaussians("interval")
        else:
            mean, variance = self.mean[None], self.variance[None]
        low, high = (uncertainty.quantile(share, mean, variance).to(mean.dtype) for share in ((1 - level) / 2, (1 + level) / 2))
        return low, high

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws `count` samples from the mixture, ``[count, N, ...]``. Each sample comes from one random member."""
        mean, variance = self._gaussians("sample")
        chosen = torch.randint(self.count, (count, len(self)), generator=generator).to(mean.device)
        noise = torch.randn((count, *mean.shape[1:]), generator=generator, dtype=mean.dtype).to(mean.device)
        return mean[chosen, torch.arange(len(self))] + variance.sqrt()[chosen, torch.arange(len(self))] * noise

    def log_density(self, targets: Any = None) -> Tensor:
        """Returns the log density of the mixture at each entry of the targets, ``[N, ...]``; by default of `self.targets`.

        Without members' outputs it is known at `self.targets` only, if `predict` had them.
        """
        if targets is None:
            if self.targets is None:
                raise InputError("log_density needs targets: pass them, or predict a dataset of pairs (input, target)")
            if "log_density" in self._computed:
                return self._computed["log_density"]
            targets = self.targets
        mean, variance = self._gaussians("log_density")
        targets = reshaped(torch.as_tensor(targets), self).to(mean)
        return uncertainty.pooled_log_probs(uncertainty.log_normal(targets, mean, variance))
