"""Recipe: the hyperparameters of a training run. The papers' recipes are in `multitudes.training.recipes`.

`batch` counts the examples of one optimiser step over all processes. `lr` and `weight_decay` have torch's meaning. The method's
`reduction` joins the members' losses: it sums them where members own weights, so that each learns as it would alone, and
averages them where members share all weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, pi
from typing import Annotated, Any, Literal

from multitudes.errors import InputError
from multitudes.settings import (
    Count,
    Rate,
    Settings,
    above,
    as_tuple,
    at_least,
    below,
    between,
    check_rules,
    check_settings,
    explained,
)

RISE, DIVISOR, LAST_DIVISOR = 0.3, 25.0, 1e4
"""OneCycleLR's pct_start, div_factor and final_div_factor."""

NotNegative = Annotated[float, at_least(0)]
Positive = Annotated[float, above(0)]


@explained
@dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """How to train: for `mt.fit(ens, train, Recipe(epochs=75, lr=0.05))`."""

    epochs: Count = 10
    """Passes over the training set, each in another order. A pass leaves out the examples after its last whole
    batch, others each time: `run.left_out` says how many."""

    batch: Count = 128
    """Examples of one optimiser step, over all processes and accumulated parts."""

    lr: NotNegative = 0.05
    """The learning rate, before the schedule."""

    optimizer: Literal["sgd", "adam", "adamw", "lamb"] = "sgd"
    """The optimiser. LAMB is that of `multitudes.training.lamb`, which scales the step of each member apart."""

    momentum: Rate = 0.9
    """Momentum of SGD."""

    nesterov: bool = False
    """Whether SGD uses Nesterov momentum."""

    weight_decay: NotNegative = 0.0
    """Weight decay as in torch: SGD and Adam add it to the gradient, AdamW and LAMB decouple it. A method may exempt
    parameters."""

    loss: Literal["task", "bce"] = "task"
    """The loss: the task's, or for classes binary cross entropy over each class, averaged over classes and rows. Predictions
    and validation take the softmax in both."""

    threshold: Annotated[float, between(0, 1)] | None = None
    """For bce: shares of classes in mixed targets that are above it count as 1, others as 0. None takes them as they are."""

    class_weights: tuple[NotNegative, ...] | None = None
    """A weight for each class in the loss, as in torch's CrossEntropyLoss(weight=...): a batch's loss is the weighted mean of
    its examples' losses. For task "binary" the weights of no and yes. None weighs all examples alike. Validation and scores
    have no weights."""

    l1: NotNegative = 0.0
    """Weight of the L1 norm of all parameters in the loss."""

    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = "constant"
    """How the learning rate changes at each step, as in torch's MultiStepLR, CosineAnnealingLR and OneCycleLR. Momentum is
    constant."""

    cycles: Count = 1
    """For cosine: the number of times that the learning rate falls; each time it starts at its top again. A method of
    checkpoints, `Snapshot`, takes as many as it has members."""

    milestones: tuple[Count, ...] = ()
    """For multistep: the epochs after which the learning rate drops, counted from the start of training, warm-up included."""

    decay: NotNegative = 0.1
    """For multistep: the factor of each drop."""

    warmup: NotNegative = 0.0
    """Epochs of linear warm-up; its last step has the full learning rate. Cosine annealing starts after it."""

    accumulate: Count = 1
    """Number of parts into which a step's batch is split; their gradients are accumulated."""

    clip: Positive | None = None
    """Largest gradient norm, for each member's weights and for the shared weights; see `clip_by`."""

    clip_by: Literal["member", "all"] = "member"
    """Whether gradients are clipped by the norm of each member and that of the shared weights, or by one norm over all."""

    ema: Annotated[float, above(0), below(1)] | None = None
    """Decay of a moving average of the weights. Validation, checkpoints and the final ensemble use the average."""

    precision: Literal["32", "bf16", "fp16"] = "32"
    """Precision of training: full ("32"), or autocast in bfloat16 or float16."""

    compile: bool = False
    """Whether the forward pass is compiled."""

    channels_last: bool = False
    """Whether images and weights use torch's channels-last memory format."""

    batches: Literal["same", "own"] = "same"
    """Whether all members see the same batches, or each member shuffles the examples in its own order. With one dataset per
    member, "same" takes the same rows of each."""

    deterministic: bool = False
    """Whether torch uses deterministic algorithms only."""

    best: Literal["ensemble", "members"] = "ensemble"
    """Best epoch by the ensemble's validation score, or for each member by its own (only if members share no weights). The
    score is `best_by`."""

    best_by: Literal["nll", "accuracy", "rmse"] | None = None
    """Score that makes an epoch the best: the lowest NLL, the highest accuracy, or the lowest RMSE. None takes the task's
    proper score: NLL for labels and for numbers with a variance, otherwise RMSE."""

    patience: Count | None = None
    """Stops training after so many epochs in a row without a better validation score (`best_by`); needs val=. None trains for
    all epochs."""

    augment: Callable[..., Any] | None = None
    """Augmentation of a batch: `multitudes.data.Augment`, or any function (x, y, generator) → (x, y)."""

    seed: Annotated[int, at_least(0)] = 0
    """Seed of the order of examples, of augmentation, and of the method's random draws."""

    def __post_init__(self) -> None:
        _refuse_foreign(self)
        as_tuple(self, "milestones")
        as_tuple(self, "class_weights")
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", _numbers(self.class_weights))
        check_settings(self)
        sgd, multistep = self.optimizer == "sgd", self.schedule == "multistep"
        check_rules(
            self,
            (list(self.milestones) != sorted({*self.milestones}), "milestones", "milestones must increase"),
            (self.batch % self.accumulate > 0, "batch accumulate", "batch must be a multiple of accumulate"),
            (
                multistep and not self.milestones,
                "schedule",
                "multistep needs milestones=, the epochs of its drops, such as (25, 50)",
            ),
            (bool(self.milestones) and not multistep, "schedule milestones", "milestones need schedule='multistep'"),
            (self.decay != 0.1 and not multistep, "schedule decay", "decay needs schedule='multistep'"),
            (self.cycles > 1 and self.schedule != "cosine", "schedule cycles", "cycles need schedule='cosine'"),
            (self.schedule == "onecycle" and self.warmup > 0, "schedule warmup", "onecycle has its own warm-up: set warmup=0"),
            (
                self.warmup > self.epochs,
                "epochs warmup",
                "the warm-up would end after the training: warmup= counts epochs, at most epochs",
            ),
            (self.momentum != 0.9 and not sgd, "optimizer momentum", "momentum needs optimizer='sgd'"),
            (self.nesterov and not sgd, "optimizer nesterov", "nesterov needs optimizer='sgd'"),
            (self.nesterov and not self.momentum, "nesterov momentum", "nesterov needs a momentum above 0, such as 0.9"),
            (self.clip_by != "member" and self.clip is None, "clip_by", "clip_by needs clip=, the largest norm"),
            (self.class_weights is not None and self.loss == "bce", "loss class_weights", "class_weights need loss='task'"),
            (
                self.class_weights is not None and not any(self.class_weights),
                "class_weights",
                "class_weights must be above 0 for some class",
            ),
            (self.threshold is not None and self.loss != "bce", "loss threshold", "threshold needs loss='bce'"),
        )

    def factor(self, step: int, steps: int) -> float:
        """Returns the factor of the learning rate at a step. Steps count from 0 over all epochs; an epoch has `steps` steps."""
        if self.schedule == "onecycle":
            return _one_cycle(step, self.epochs * steps)
        at = step / steps
        ready = min(1.0, (step + 1) / (self.warmup * steps)) if self.warmup else 1.0
        if self.schedule == "cosine":
            done = max(0.0, at - self.warmup) / max(self.epochs - self.warmup, 1e-12)
            done = 1.0 if done >= 1 else done * self.cycles % 1  # of the present cycle
            return ready * 0.5 * (1 + cos(pi * done))
        if self.schedule == "multistep":
            return ready * self.decay ** sum(at >= milestone for milestone in self.milestones)
        return ready

    def settings(self) -> dict[str, Any]:
        """Returns the fields by name, as values that JSON can hold."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        weights = None if self.class_weights is None else list(self.class_weights)
        more = {"milestones": list(self.milestones), "class_weights": weights, "augment": _described(self.augment)}
        return {**fields, **more}


def _refuse_foreign(recipe: Recipe) -> None:
    """Raises an InputError for what other libraries take as class weights, optimizer or schedule, with what to type here."""
    weights = recipe.class_weights
    if isinstance(weights, str):
        raise InputError(
            f"Recipe(class_weights={weights!r}): class_weights must be one number per class. To let all classes count alike: "
            "class_weights=(1 / torch.bincount(labels)).tolist()"
        )
    if isinstance(weights, Mapping):
        order = weights.keys() == set(range(len(weights)))
        line = str(tuple(weights[k] for k in range(len(weights)))) if order else "(1, 5)"
        raise InputError(
            f"Recipe(class_weights={weights!r}): class_weights must be one number per class, in the order of the classes, "
            f"as in class_weights={line}"
        )
    for name, argument, line in (
        ("optimizer", "optimizer", "lambda parameters: torch.optim.NAdam(parameters, lr=1e-3)"),
        ("schedule", "scheduler", "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)"),
    ):
        value = getattr(recipe, name)
        if not isinstance(value, str) and value is not None:
            given = value.__name__ if isinstance(value, type) else type(value).__name__
            raise InputError(
                f"Recipe({name}={given}): a recipe has names, as in {name}={getattr(Recipe, name)!r}. "
                f"Your own goes to fit: fit(..., {argument}={line})"
            )


def _numbers(values: Any) -> Any:
    """Returns the numbers of a tuple of numbers or tensors of one number, as floats; other values as they are."""
    try:
        return tuple(float(value) for value in values)
    except (TypeError, ValueError):
        return values


def _one_cycle(step: int, total: int) -> float:
    """Returns the factor of OneCycleLR with cosine annealing: 1 at step 0.3 total − 1, smallest at the last step."""
    first, least = 1 / DIVISOR, 1 / (DIVISOR * LAST_DIVISOR)
    top, last = RISE * total - 1, total - 1
    if step <= top:
        return 1 + (first - 1) * 0.5 * (1 + cos(pi * step / top))
    return least + (1 - least) * 0.5 * (1 + cos(pi * min((step - top) / (last - top), 1.0)))


def _described(augment: Any) -> Any:
    if augment is None:
        return None
    if dataclasses.is_dataclass(augment) and not isinstance(augment, type):
        return {"kind": type(augment).__name__, **dataclasses.asdict(augment)}
    return getattr(augment, "__qualname__", type(augment).__name__)
