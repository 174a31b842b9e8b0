"""The zoo: thin models that hold what conversion must survive, and the table of what cannot hold.

`ZOO` has a case for every model: how it is built, its inputs, and what is known of it. `FIVE` of them are run by `make test`,
all of them by `make test-full`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from nets import convolutional as conv
from nets import hazards as hazard
from nets import oddities as odd
from nets import sequences as seq
from torch import Tensor, nn

import multitudes as mt

BATCH = 3


@dataclass(frozen=True)
class Case:
    """A model of the zoo."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    """The arguments of one call for a number of rows, drawn from torch's global randomness."""
    scores: Callable[[Any], Tensor] = lambda output: output
    """The class scores ``[B, K, ...]`` in the model's output."""
    batch_axis: Any = 0
    cnn: bool = False
    """Whether it compiles into one graph, as convolutional networks do."""
    noisy: bool = False
    """Whether it is random in training by other means than dropout modules."""
    alone: bool = True
    """Whether a row's output depends on that row alone, in eval mode: not, for example, on how many others there are."""
    name: str = ""

    def model(self, seed: int = 0, dtype: torch.dtype = torch.float64, train: bool = False) -> nn.Module:
        """The model as this seed makes it, in eval mode."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.build().to(dtype).train(train)

    def example(self, batch: int = BATCH, seed: int = 1, dtype: torch.dtype = torch.float64) -> mt.Inputs:
        """One call of the model."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            call = mt.Inputs.of(self.inputs(batch))
        return call.refill([t.to(dtype) if t.is_floating_point() else t for t in call.tensors()])

    def target(self, output: Any, seed: int = 2) -> Tensor:
        """Classes for the rows of one network's output."""
        scores = self.scores(output)
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(scores.shape[1], (scores.shape[0], *scores.shape[2:]), generator=generator)

    def criterion(self, output: Any, target: Tensor) -> Tensor:
        """Cross-entropy of one network's output."""
        return F.cross_entropy(self.scores(output), target)


def image(batch: int) -> Tensor:
    """Small pictures."""
    return torch.randn(batch, 3, 8, 8)


def vector(batch: int) -> Tensor:
    """Rows of four numbers."""
    return torch.randn(batch, 4)


def sequence(batch: int) -> Tensor:
    """Rows of four steps."""
    return torch.randn(batch, 4, 4)


def wide(batch: int) -> Tensor:
    """Rows of eight numbers."""
    return torch.randn(batch, 8)


def steps(batch: int) -> Tensor:
    """Rows of four steps of eight numbers."""
    return torch.randn(batch, 4, 8)


def steps_first(batch: int) -> Tensor:
    """Four steps of all rows."""
    return torch.randn(4, batch, 8)


def padded(batch: int) -> mt.Inputs:
    """Steps, and which of them are padding: none of the first row's, one of the second's, and so on."""
    return mt.Inputs(steps(batch), torch.arange(4) >= 4 - torch.arange(batch)[:, None] % 3)


def nested(batch: int) -> mt.Inputs:
    """One dictionary that holds everything."""
    return mt.Inputs({"parts": (wide(batch), [torch.rand(batch, 1)]), "h": wide(batch)})


def ids(batch: int) -> Tensor:
    """Rows of five tokens."""
    return torch.randint(7, (batch, 5))


def masked_ids(batch: int) -> mt.Inputs:
    """Tokens, the last of which are padding."""
    mask = torch.ones(batch, 5, dtype=torch.long)
    mask[:, 4:] = 0
    return mt.Inputs(ids(batch), attention_mask=mask)


def with_context(batch: int) -> mt.Inputs:
    """Rows, a context that has none, and a keyword."""
    return mt.Inputs(vector(batch), torch.randn(2), mask=torch.rand(batch, 6))


ZOO: dict[str, Case] = {
    "mlp": Case(odd.mlp, vector),
    "cnn": Case(conv.CNN, image, cnn=True),
    "resnet": Case(conv.ResNet, image, cnn=True),
    "resnet_bottleneck": Case(lambda: conv.ResNet(conv.Bottleneck), image, cnn=True),
    "wideresnet": Case(conv.WideResNet, image, cnn=True),
    "pyramidnet": Case(conv.PyramidNet, image, cnn=True),
    "densenet": Case(conv.DenseNet, image, cnn=True),
    "unet": Case(conv.UNet, image, cnn=True),
    "shufflenet": Case(conv.ShuffleNet, image, cnn=True),
    "mobilenet": Case(conv.MobileNet, image, cnn=True),
    "convnext": Case(conv.ConvNeXt, image, cnn=True),
    "groupnorm": Case(conv.GroupNormNet, image, cnn=True),
    "vit": Case(seq.ViT, image),
    "transformer_encoder": Case(seq.Encoder, ids),
    "lstm": Case(seq.LSTM, sequence),
    "in_place": Case(seq.InPlace, sequence),
    "tied": Case(seq.Tied, ids, scores=lambda output: output.movedim(2, 1)),
    "hugging_face_vit": Case(seq.hugging_face_vit, image, scores=lambda output: output.logits),
    "hugging_face_bert": Case(seq.hugging_face_bert, masked_ids, scores=lambda output: output.logits),
    "checkpoint": Case(lambda: odd.Checkpointed(use_reentrant=False), vector),
    "checkpoint_reentrant": Case(lambda: odd.Checkpointed(use_reentrant=True), vector),
    "branching": Case(odd.Branching, vector),
    "one_layer": Case(lambda: nn.Linear(4, 5), vector),
    "head_first": Case(odd.HeadFirst, vector),
    "dropout": Case(lambda: odd.mlp(nn.Dropout(0.2)), vector),
    "functional_dropout": Case(odd.FunctionalDropout, vector, noisy=True),
    "several_inputs": Case(odd.SeveralInputs, with_context, batch_axis=(0, None, 0)),
    "dict_output": Case(lambda: odd.Structured("dict"), vector, scores=lambda output: output["scores"]),
    "tuple_output": Case(lambda: odd.Structured("tuple"), vector, scores=lambda output: output[0]),
    "dataclass_output": Case(lambda: odd.Structured("dataclass"), vector, scores=lambda output: output.scores),
    "namedtuple_output": Case(lambda: odd.Structured("namedtuple"), vector, scores=lambda output: output.scores),
    "weight_norm": Case(odd.WeightNorm, vector),
    "cumulative_batchnorm": Case(lambda: odd.mlp(nn.BatchNorm1d(8, momentum=None)), vector),
    "table": Case(odd.Table, vector),
    "reassigning": Case(odd.Reassigning, vector),
    "residual": Case(hazard.Residual, wide),
    "early_token": Case(hazard.EarlyToken, steps),
    "stored_rows": Case(hazard.StoredRows, steps),
    "padding_mask": Case(hazard.PaddingMask, padded),
    "untouched": Case(hazard.Untouched, wide, scores=lambda output: output[0]),
    "batch_mean": Case(hazard.BatchMean, wide, alone=False),
    "numbered": Case(hazard.Numbered, wide, alone=False),
    "steps_first": Case(hazard.StepsFirst, steps_first, scores=lambda output: output.permute(1, 2, 0), batch_axis=1),
    "last_step": Case(lambda: hazard.StepsFirst(last=True), steps_first, batch_axis=(1,)),
    "step_major": Case(hazard.StepMajor, steps),
    "two_views": Case(hazard.TwoViews, wide),
    "windows": Case(hazard.Windows, steps),
    "channels_as_rows": Case(hazard.ChannelsAsRows, image),
    "recurrent_between": Case(hazard.RecurrentBetween, steps),
    "selected": Case(hazard.Selected, wide),
    "unpadded": Case(hazard.Unpadded, padded),
    "filled": Case(hazard.Filled, wide),
    "input_again": Case(hazard.InputAgain, wide),
    "branches": Case(hazard.Branches, wide),
    "called_twice": Case(hazard.CalledTwice, wide),
    "used_twice": Case(hazard.UsedTwice, wide),
    "loose": Case(hazard.Loose, wide),
    "einsum": Case(hazard.Einsum, steps),
    "squeezed": Case(hazard.Squeezed, image, alone=False),
    "nested": Case(hazard.Nested, nested, scores=lambda output: output[0]["scores"]),
    "row_by_row": Case(hazard.RowByRow, wide),
}
ZOO = {name: Case(**{**vars(case), "name": name}) for name, case in ZOO.items()}

HAZARDS = (
    *("dict_output", "branching", "in_place", "densenet", "shufflenet", "transformer_encoder"),
    *list(ZOO)[list(ZOO).index("residual") :],
)
"""Models on which members that share weights go wrong, where they are carried in one pass without care."""

FIVE = ("resnet", "unet", "vit", "transformer_encoder", "lstm")
"""Networks that hold most of the hazards together: BatchNorm, concatenation, attention, embeddings, recurrence."""

EVERY = "*"


@dataclass(frozen=True)
class Refusal:
    """Why a law cannot hold, the error that says so, and a pattern for what the error names."""

    reason: str
    error: type[Exception]
    names: str


def unfit(reason: str, names: str) -> Refusal:
    """A network that a method cannot convert."""
    return Refusal(reason, mt.ConversionError, names)


def not_thinned(reason: str, names: str = "") -> Refusal:
    """A network that cannot be thinned by its channels; the error asks for a factory."""
    return unfit(reason, rf"0\.5(.|\n)*{names}(.|\n)*factory")


TIED = unfit("A head tied to the shared embedding cannot belong to members.", "embed.weight")
STEM = unfit("Only a product with a weight is a sum over slots.", "LSTM|ParametrizedLinear")
AROUND = unfit("An input that reaches the output around the first layer is of no slot.", "first layer")
FIRST_AND_LAST = unfit("Slots and heads need something between them.", r"body\.0|the model")
STANDS = unfit("A computed weight has no components.", "last .*ParametrizedLinear")
ROWS_APART = unfit("A mask is for one row's activation.", "head|middle|second")
ONE_AVERAGE = Refusal("A moving average in which members differ has no one value.", mt.RunError, "average")
TWICE = unfit("A tied tensor would be shifted twice.", "embed.weight")
LAST_ONES = Refusal("The posterior is that of one last layer.", mt.InputError, "one last layer")
FEATURES = not_thinned("A hidden layer that is an output must keep its width.")
AS_WIDE = not_thinned("The output of a hidden layer meets something as wide that cannot be thinned.")

STEPS = ("untouched", "state_dict", "save_load", "deepcopy", "training")
"""Laws that take a training step."""
TRAINING = ("members_first", "member", "no_leak", "chunk", *STEPS)
"""Laws that run a network in training mode."""
OUTPUTS = ("dict_output", "tuple_output", "dataclass_output", "namedtuple_output")


def each(method: str, entry: Refusal, *cases: str, laws: tuple[str, ...] = (EVERY,)) -> dict[tuple[str, str, str], Refusal]:
    """One entry for several networks and laws."""
    return {(method, case, law): entry for case in cases for law in laws}


REFUSALS: dict[tuple[str, str, str], Refusal] = {
    (EVERY, "branching", "export"): Refusal("A graph cannot branch on values.", RuntimeError, "data-dependent"),
    (EVERY, "dataclass_output", "export"): Refusal("torch exports the types it knows.", RuntimeError, "Output"),
    (EVERY, "row_by_row", "export"): Refusal("A graph has a step for each row it was traced with.", RuntimeError, "constant"),
    ("Single", "resnet", "public"): Refusal("The network itself comes from no paper.", AssertionError, "Single"),
    **each("MultiHead", TIED, "tied"),
    **each("MultiHead", ONE_AVERAGE, "reassigning", laws=("by_rows",)),
    **each("TreeNet", TIED, "tied"),
    **each("TreeNet", ONE_AVERAGE, "reassigning", laws=("by_rows",)),
    **each("BatchEnsemble", unfit("A moving average in which members differ has no one value.", "average"), "reassigning"),
    **each("Masksembles", unfit("The network's input gets no mask.", "channels"), "one_layer"),
    **each("MIMO", STEM, "lstm", "weight_norm"),
    **each("MIMO", AROUND, "residual", "untouched", "input_again", "einsum"),
    **each("MIMO", unfit("A table for each slot is no head.", "tied to head"), "tied"),
    **each("MIMO", unfit("A layer sums over slots in each of its calls.", "again"), "called_twice"),
    **each("MIMO", unfit("Slots hold rows in other orders.", "order of rows"), "numbered"),
    **each("MIMO", FIRST_AND_LAST, *OUTPUTS, "one_layer"),
    **each("MIMO", ONE_AVERAGE, "reassigning", laws=("by_rows",)),
    **each("EMP", TIED, "tied"),
    **each("EMP", STANDS, "weight_norm"),
    **each("ECMP", TIED, "tied"),
    **each("ECMP", STANDS, "weight_norm"),
    **each("DropConnect", ONE_AVERAGE, "reassigning", laws=("members_first", "member", "no_leak", "chunk", "save_load")),
    **each("SWAG", TWICE, "tied"),
    **each("SWAG", ONE_AVERAGE, "reassigning", laws=("members_first", "member", "no_leak", "chunk")),
    **each("Snapshot", TWICE, "tied"),
    **each("Snapshot", ONE_AVERAGE, "reassigning", laws=("members_first", "member", "no_leak", "chunk")),
    **each("Laplace", TWICE, "tied"),
    **each("Laplace", unfit("The posterior is that of a linear layer.", "nn.Linear"), "unet", "weight_norm"),
    **each("Laplace", LAST_ONES, *OUTPUTS, "nested"),
    **each("MCDropout", ROWS_APART, "selected", "unpadded", "two_views", "step_major"),
    **each("MCDropout", ROWS_APART, "squeezed", laws=("member",)),
    **each("MCDropout", unfit("There is no dropout, and nothing to put it before.", "position"), "one_layer"),
    **each("MCDropout", unfit("How often it drops depends on the rows.", "second"), "row_by_row"),
    **each("Packed", FEATURES, *OUTPUTS),
    **each("Packed", AS_WIDE, "residual", "input_again", "called_twice", "unpadded", "filled"),
    **each("Packed", not_thinned("There is nothing between input and output."), "one_layer"),
    **each("Packed", not_thinned("The width of its norm is a number."), "tied"),
    **each("Packed", not_thinned("The number of heads times their width is a number."), "einsum"),
    **each("Packed", not_thinned("An input is as wide as a hidden layer."), "several_inputs"),
    **each("Packed", not_thinned("Recurrent layers are thinned by their constructor.", "lstm|LSTM"), "lstm"),
    **each("Packed", not_thinned("Recurrent layers are thinned by their constructor."), "recurrent_between"),
    **each("Packed", not_thinned("Pruning loses sight of channels that are written in place."), "in_place"),
    **each("Packed", not_thinned("A buffer has the width of a layer."), "table", "reassigning"),
    **each("Packed", not_thinned("A matrix that no layer holds has the width of one."), "loose"),
}
"""What cannot hold, by method, model and law (`EVERY` for all): each entry is tested to be refused."""


def refusal(method: str, case: str, law: str) -> Refusal | None:
    """The entry that speaks of this law for this method on this model, if there is one."""
    for key in ((method, case, law), (method, case, EVERY), (EVERY, case, law), (EVERY, case, EVERY)):
        if key in REFUSALS:
            return REFUSALS[key]
    return None
