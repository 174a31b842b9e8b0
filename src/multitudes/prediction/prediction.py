"""Prediction: what members answer to a set of examples, and what can be said of it.

Members' values are kept as they are, under `pred.members`; everything else is the mixture's, made when it is asked for, in
pieces of bounded size. What a value means comes from the task, never from the value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from multitudes.errors import FileError, InputError
from multitudes.prediction import uncertainty
from multitudes.prediction.members import Members
from multitudes.prediction.targets import reshaped
from multitudes.prediction.tasks import checked_task
from multitudes.prediction.temperature import Calibrator
from multitudes.prediction.values import (
    CLASSES,
    as_member_tensor,
    check_names,
    check_values,
    describe,
    flatten_examples,
    pooled,
    pooled_logs,
    with_classes_second,
)

HELD = ("probs", "logs", "mean", "aleatoric", "epistemic")
"""What is made beside what is said of examples."""

PIECE = 1 << 20
"""Numbers that are worked on at a time: about as many as stay in a processor's cache."""


class Prediction:
    """The answers of M members to N examples.

    One of `logits` and `probs`, ``[M, N, K, ...]`` for classes (with the axis of classes second in a member's output, or
    where `class_axis` says), ``[M, N, ...]`` for one logit or several labels; or `mean` with or without `variance`,
    ``[M, N, ...]``. Further axes are pixels or tokens. `targets` ``[N, ...]`` may travel along.

    >>> pred = Prediction(logits=torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]]))
    >>> pred
    Prediction(classes: 2 members, 2 examples, 2 classes)
    >>> pred.labels.tolist(), pred.disagreement.tolist()
    ([0, 0], [0.0, 1.0])
    """

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
        calibrator: Calibrator | None = None,
    ) -> None:
        given = {"logits": logits, "probs": probs, "mean": mean, "variance": variance}
        values = {name: as_member_tensor(name, value) for name, value in given.items() if value is not None}
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
        self.calibrator = calibrator
        self.temperature = 1.0
        if calibrator is not None:
            values, self.temperature = calibrator.applied(values, self.task)
        first = next(iter(values.values()))
        self._values = values
        self._count = first.shape[0]
        self._shape = torch.Size([first.shape[1], *first.shape[3:]]) if self.task == "classes" else first.shape[1:]
        self._made: dict[str, Tensor] = {}
        self.targets = None if targets is None else torch.as_tensor(targets)
        if self.targets is not None and (not self.targets.ndim or len(self.targets) != len(self)):
            raise InputError(f"there are {len(self)} examples, and targets are {list(self.targets.shape)}")

    @property
    def members(self) -> Members:
        """Members' values, ``[M, N, ...]``: `pred.members.logits`, `.probs`, `.labels`; `.mean`, `.variance`."""
        if not self.has_members:
            raise InputError("this prediction holds moments only, and no members: predict(..., moments_only=False)")
        return Members(self._values, self.task)

    @property
    def has_members(self) -> bool:
        """Whether members' values are held, and not only what they come to."""
        return bool(self._values)

    @property
    def count(self) -> int:
        """How many members, M."""
        return self._count

    @property
    def shape(self) -> torch.Size:
        """The shape of what is predicted: ``[N]``, ``[N, H, W]`` for pixels, ``[N, D]`` for several labels or targets."""
        return self._shape

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def classes(self) -> int:
        """How many classes, K; two for a binary task and for each label."""
        if self.task not in CLASSES:
            raise InputError(f"task={self.task!r} has no classes")
        if self.task != "classes":
            return 2
        return next(iter(self._values.values())).shape[2] if self._values else self.logs.shape[-1]

    def pieces(self, size: int = PIECE) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """Members' values in pieces of whole examples: rows, and ``[M, n, K]`` for classes, with pixels as examples."""
        first = next(iter(self.members.values()))
        step = max(1, size // max(1, math.prod(first.shape[2:]) * first.shape[0]))
        for start in range(0, len(self), step):
            rows = slice(start, min(start + step, len(self)))
            yield rows, {name: flatten_examples(value[:, rows], self.task) for name, value in self._values.items()}

    def described(self) -> dict[str, Tensor]:
        """Everything that is said of an example, by name, in the shape of what is predicted."""
        if self.task not in CLASSES:
            raise InputError(f"task={self.task!r} has no classes to be unsure of: there are mean, variance and interval(0.9)")
        if "labels" not in self._made:
            parts = [describe(values, self.temperature) for _, values in self.pieces()]
            if not parts:
                blank = {name: value.flatten(1)[:, :0] for name, value in self._values.items() if self.task != "classes"}
                blank = blank or {name: value.new_zeros(self.count, 0, self.classes) for name, value in self._values.items()}
                parts = [describe(blank, 1.0)]
            for name in parts[0]:
                self._made[name] = torch.cat([part[name] for part in parts]).reshape(self.shape)
        return {name: value for name, value in self._made.items() if name not in HELD}

    def _said(self, name: str) -> Tensor:
        found = self.described()
        if name not in found:
            raise InputError(f"{name} needs logits, and this prediction was given probabilities: Prediction(logits=...)")
        return found[name]

    @property
    def probs(self) -> Tensor:
        """The mixture's probabilities: ``[N, K, ...]``, or of "yes" ``[N, ...]`` where the answer is yes or no."""
        if self.task not in CLASSES:
            raise InputError(f"task={self.task!r} has no probabilities of classes: there are mean, variance and interval(0.9)")
        if "probs" not in self._made:
            parts = [pooled(values, self.temperature) for _, values in self.pieces()] if self.has_members else [self.logs.exp()]
            found = torch.cat(parts) if parts else torch.zeros(0, self.classes, dtype=next(iter(self._values.values())).dtype)
            found = found.reshape(*self.shape, self.classes)
            self._made["probs"] = found.movedim(-1, 1) if self.task == "classes" else found[..., 1]
        return self._made["probs"]

    @property
    def logs(self) -> Tensor:
        """The logs of the mixture's probabilities with classes last, ``[N, ..., K]``: finite where these vanish."""
        if "logs" in self._made:
            return self._made["logs"]
        if not self.has_members:
            probs = self._made["probs"].double()
            return (probs.movedim(1, -1) if self.task == "classes" else torch.stack([1 - probs, probs], -1)).log()
        parts = [pooled_logs(values, self.temperature) for _, values in self.pieces()]
        found = torch.cat(parts) if parts else torch.zeros(0, self.classes, dtype=torch.float64)
        return found.reshape(*self.shape, self.classes)

    def __getitem__(self, rows: Any) -> Prediction:
        """The prediction of some of the examples: a slice, a mask ``[N]``, or their numbers."""
        if not isinstance(rows, slice):
            rows = torch.as_tensor(rows).cpu()
            rows = torch.arange(len(self))[rows if rows.numel() else rows.long()].reshape(-1)
        return self._with(
            {name: value[:, rows] for name, value in self._values.items()},
            {name: value[rows] for name, value in self._made.items()},
            None if self.targets is None else self.targets[rows],
        )

    def subset(self, members: Sequence[int]) -> Prediction:
        """The prediction of some of the members; the temperature of another mixture is not known, and left out."""
        values = self.members
        if not len(members):
            raise InputError("subset([]) would leave no member")
        new = self._with({name: value[list(members)] for name, value in values.items()}, {}, self.targets)
        new.temperature, new.calibrator = 1.0, self.calibrator and self.calibrator.subset(members)
        return new

    def calibrated(self, calibrator: Calibrator) -> Prediction:
        """The same with these temperatures."""
        if self.calibrator is not None:
            raise InputError("this prediction is calibrated already")
        values, temperature = calibrator.applied(self.members, self.task)
        new = self._with(values, {}, self.targets)
        new.calibrator, new.temperature = calibrator, temperature
        return new

    @classmethod
    def cat(cls, parts: Sequence[Prediction]) -> Prediction:
        """Several predictions of the same members as one, one after the other."""
        kinds = {(p.task, p.count, p.calibrator, *p._values, p.shape[1:], p.task in CLASSES and p.classes) for p in parts}
        if len(kinds) != 1:
            raise InputError(f"there must be predictions of one kind to put together, and there are {len(kinds)}")
        targets = [part.targets for part in parts]
        held = [part._made if not part.has_members else {} for part in parts]
        return parts[0]._with(
            {name: torch.cat([part._values[name] for part in parts], 1) for name in parts[0]._values},
            {name: torch.cat([made[name] for made in held]) for name in held[0]},
            None if any(t is None for t in targets) else torch.cat(targets),  # type: ignore[arg-type]
        )

    @classmethod
    def of_moments(cls, task: str, count: int, made: Mapping[str, Tensor], targets: Any = None) -> Prediction:
        """A prediction of which only what members come to is held: what `described` has and `probs`, or the moments."""
        new = cls.__new__(cls)
        shape = made["labels"].shape if task in CLASSES else made["mean"].shape
        vars(new).update(task=checked_task(task), calibrator=None, temperature=1.0, _values={}, _count=count, _shape=shape)
        vars(new).update(_made=dict(made), targets=None if targets is None else torch.as_tensor(targets))
        return new

    def _with(self, values: Mapping[str, Tensor], made: Mapping[str, Tensor], targets: Tensor | None) -> Prediction:
        """The same with other values, sound as these are."""
        new = type(self).__new__(type(self))
        vars(new).update(vars(self), _values=dict(values), _made=dict(made), targets=targets)
        if values:
            first = next(iter(values.values()))
            kept = [first.shape[1], *first.shape[3:]] if self.task == "classes" else first.shape[1:]
            vars(new).update(_count=first.shape[0], _shape=torch.Size(kept))
        else:
            vars(new)["_shape"] = next(iter(made.values())).shape[:1] + self._shape[1:]
        return new

    def save(self, path: str | PathLike[str]) -> None:
        """Writes members' values, or what is held of them, and the targets to one safetensors file."""
        from multitudes.storage import save_tensors

        held = self._values or self._made
        about = {"task": self.task, "count": self.count, "temperature": self.temperature, "members": self.has_members}
        about["calibrator"] = None if self.calibrator is None else self.calibrator.settings()
        tensors = {**held, **({} if self.targets is None else {"targets": self.targets})}
        save_tensors(path, "prediction", about, tensors)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Prediction:
        """The prediction in a file."""
        from multitudes.storage import load_tensors

        about, tensors = load_tensors(path, "prediction")
        targets = tensors.pop("targets", None)
        try:
            if not about["members"]:
                new = cls.of_moments(about["task"], about["count"], tensors, targets)
            else:
                new = cls(**tensors, task=about["task"], targets=targets)  # type: ignore[arg-type]
            new.temperature = float(about["temperature"])
            new.calibrator = None if about["calibrator"] is None else Calibrator(**about["calibrator"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{path} does not describe a prediction: {error}") from error
        return new

    def __repr__(self) -> str:
        what = [f"{self.count} member{'s' if self.count > 1 else ''}", f"{len(self):,} examples"]
        what += [f"{self.classes} classes"] if self.task == "classes" else []
        what += [f"{' × '.join(map(str, self.shape[1:]))} each"] if len(self.shape) > 1 else []
        return f"Prediction({self.task}: {', '.join(what)}{'' if self.has_members else ', moments only'})"

    @property
    def labels(self) -> Tensor:
        """The most probable class, or yes (1) and no (0)."""
        return self._said("labels")

    @property
    def confidence(self) -> Tensor:
        """The probability of the label."""
        return self._said("confidence")

    @property
    def margin(self) -> Tensor:
        """By how much the label is more probable than the next."""
        return self._said("margin")

    @property
    def entropy(self) -> Tensor:
        """The mixture's entropy in nats: all uncertainty there is."""
        return self._said("entropy")

    @property
    def expected_entropy(self) -> Tensor:
        """The members' mean entropy: aleatoric uncertainty."""
        return self._said("expected_entropy")

    @property
    def mutual_information(self) -> Tensor:
        """By how much the mixture is less sure than its members: epistemic uncertainty, without a mixture's temperature."""
        return self._said("mutual_information")

    @property
    def variation_ratio(self) -> Tensor:
        """The share of members that are not with the majority."""
        return self._said("variation_ratio")

    @property
    def disagreement(self) -> Tensor:
        """The share of pairs of members that give different labels."""
        return self._said("disagreement")

    @property
    def max_logit(self) -> Tensor:
        """The largest of the members' mean logits; less for what is unknown."""
        return self._said("max_logit")

    @property
    def energy(self) -> Tensor:
        """−log Σ exp logits, the members' mean; more for what is unknown. Of yes and no, the logits are z/2 and −z/2."""
        return self._said("energy")

    @property
    def mean(self) -> Tensor:
        """The mixture's mean, ``[N, ...]``."""
        return self._moment("mean")

    @property
    def aleatoric(self) -> Tensor:
        """The members' mean variance: the noise of what is observed; 0 where members give none."""
        return self._moment("aleatoric")

    @property
    def epistemic(self) -> Tensor:
        """The variance of the members' means: what they disagree about."""
        return self._moment("epistemic")

    @property
    def variance(self) -> Tensor:
        """The mixture's variance, aleatoric + epistemic."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """The mixture's standard deviation."""
        return self.variance.sqrt()

    def _moment(self, name: str) -> Tensor:
        if self.task in CLASSES:
            raise InputError(f"task={self.task!r} has no {name}: there are probs, labels and entropy")
        if name not in self._made:
            self._made.update(uncertainty.moments(self._values["mean"], self._values.get("variance")))
        return self._made[name]

    def _gaussians(self, wanted: str) -> tuple[Tensor, Tensor]:
        """Members' means and variances."""
        self._moment("mean")
        if "variance" not in self.members:
            raise InputError(
                f"{wanted} needs the variance of an observation, and there are means only: train with task='gaussian', "
                "or give EMP(tau_output=...)"
            )
        return self._values["mean"], self._values["variance"]

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the central interval that holds this share of the mixture, ``[N, ...]`` each.

        Exact for a mixture of Gaussians; where there are moments only, or means only, that of a Gaussian with the same moments.
        """
        if not 0 < level < 1:
            raise InputError(f"level={level}: a share between 0 and 1")
        if "variance" not in self._values and self.count == 1 and not bool((self.variance > 0).any()):
            raise InputError(
                "one network that gives means only has no interval: train with task='gaussian', or several members"
            )
        if "variance" in self._values:
            mean, variance = self._gaussians("interval")
        else:
            mean, variance = self.mean[None], self.variance[None]
        low, high = (uncertainty.quantile(share, mean, variance).to(mean.dtype) for share in ((1 - level) / 2, (1 + level) / 2))
        return low, high

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws from the mixture, ``[count, N, ...]``: each example's of one member, chosen at random."""
        mean, variance = self._gaussians("sample")
        chosen = torch.randint(self.count, (count, len(self)), generator=generator).to(mean.device)
        noise = torch.randn((count, *mean.shape[1:]), generator=generator, dtype=mean.dtype).to(mean.device)
        return mean[chosen, torch.arange(len(self))] + variance.sqrt()[chosen, torch.arange(len(self))] * noise

    def log_density(self, targets: Any) -> Tensor:
        """The log of the mixture's density at the targets, each entry by itself, ``[N, ...]``."""
        mean, variance = self._gaussians("log_density")
        targets = reshaped(torch.as_tensor(targets), self).to(mean)
        return uncertainty.pooled_log_probs(uncertainty.log_normal(targets, mean, variance))
