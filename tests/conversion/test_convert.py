"""plan and ensemble: one call, and the model given stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from laws import METHODS
from laws.compare import assert_same
from nets.oddities import Structured
from torch import Tensor, nn
from zoo import FIVE, ZOO, refusal

import multitudes as mt
from multitudes.conversion.anatomy import structure
from multitudes.models import MLP


def test_the_first_page_of_the_readme() -> None:
    """A model, a method and an example become an ensemble that answers members first."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    ens = mt.ensemble(net, mt.Deep(members=5), torch.randn(2, 4))
    assert ens(torch.randn(7, 4)).shape == (5, 7, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_a_factory_may_stand_for_the_model(kind: type[mt.Method]) -> None:
    """It is called for the architecture, and by methods whose members own weights for each of them."""
    case = ZOO["resnet"]

    def factory(ratio: float) -> nn.Module:
        return type(case.model())(widths=(round(4 * ratio), round(6 * ratio), round(8 * ratio))).double()

    ens = mt.ensemble(factory, kind(), case.example(), seed=0)
    assert ens(*case.example().args).shape == (kind().members, 3, 5)
    mt.check(ens.eval(), case.example())


def test_sequence_first_inputs() -> None:
    """batch_axis=1 says where the rows are; outputs follow."""
    net, x = nn.LSTM(4, 6).double(), torch.randn(5, 3, 4, dtype=torch.float64)
    ens = mt.ensemble(net, mt.Deep(), x, batch_axis=1, seed=0)
    output, (hidden, _) = ens(x)
    assert output.shape == (4, 5, 3, 6)
    assert hidden.shape == (4, 1, 3, 6)
    for m in range(4):
        assert_same(output[m], ens.member(m)(x)[0])


def test_inputs_without_rows() -> None:
    """batch_axis with None for an input that is no batch."""
    case = ZOO["several_inputs"]
    ens = mt.ensemble(case.model(), mt.Deep(), case.example(), batch_axis=(0, None, 0), seed=0)
    x = case.example(6)
    assert ens(*x.args, **x.kwargs).shape == (4, 6, 5)
    with pytest.raises(mt.InputError, match="disagree about the number of rows"):
        mt.ensemble(case.model(), mt.Deep(), case.example(), seed=0)


def test_a_tuple_is_one_argument() -> None:
    """Only mt.Inputs means several."""

    class Pairwise(nn.Linear):
        def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
            return super().forward(pair[0] + pair[1])

    pair = (torch.randn(3, 4), torch.randn(3, 4))
    ens = mt.ensemble(Pairwise(4, 5), mt.Deep(), pair, seed=0)
    assert_same(ens(pair)[1], ens.member(1)(pair), tight=False)


def test_the_same_settings_at_some_layers_say_nothing_new() -> None:
    """at= with the method's own settings is allowed."""
    case = ZOO["mlp"]
    ens = mt.ensemble(case.model(), mt.Deep(), case.example(), at={"0": mt.Deep()}, seed=0)
    expected = mt.ensemble(case.model(), mt.Deep(), case.example(), seed=0)
    assert_same(dict(ens.state_dict()), dict(expected.state_dict()))


def test_conversion_works_inside_inference_mode_and_autocast() -> None:
    """Whatever the caller is in, the trial runs with gradients and in full precision."""
    case = ZOO["resnet"]
    model, x = case.model(), case.example()
    with torch.inference_mode():
        ens = mt.ensemble(model, mt.Deep(), x, seed=0)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        other = mt.ensemble(model, mt.Deep(), x, seed=0)
    assert ens.plan.proven == other.plan.proven == dict.fromkeys(("train", "eval"), ("loop", "vmap", "fold"))
    ens.loss(case.example(), torch.tensor([0, 1, 2]), case.criterion).backward()


def test_the_self_check_can_be_skipped() -> None:
    """check=False does not run the laws, and gives the same ensemble."""
    case = ZOO["mlp"]
    skipped = mt.ensemble(case.model(), mt.Deep(), case.example(), seed=0, check=False)
    assert_same(dict(skipped.state_dict()), dict(mt.ensemble(case.model(), mt.Deep(), case.example(), seed=0).state_dict()))


class Sticky(nn.Module):
    """Adds to its output what the last call left in a list that all copies share."""

    memory: ClassVar[list[float]] = [0.0]

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        output = h + self.memory[0]
        self.memory[0] = h.mean().item()
        return output


def test_a_model_whose_calls_depend_on_each_other_is_refused() -> None:
    """Members that reach into each other are found at conversion, whatever the way."""
    with pytest.raises(mt.ConversionError, match=r"Sticky.*(independent|law)"):
        mt.ensemble(Sticky().double(), mt.Deep(), torch.randn(3, 4, dtype=torch.float64), seed=0)


class Holder:
    """Holds a tensor in a way of its own."""

    def __init__(self, held: Tensor) -> None:
        self.held = held


class Opaque(nn.Module):
    """Returns an object that holds a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> dict[str, object]:
        scores = self.layer(x)
        return {"scores": scores, "thing": Holder(scores)}


def test_an_output_without_a_member_axis_is_named() -> None:
    """An object that is no tensor and no constant cannot be stacked."""
    with pytest.raises(mt.MultitudesError, match="output thing is a Holder"):
        mt.ensemble(Opaque(), mt.Deep(), torch.randn(3, 4))


@pytest.mark.parametrize("kind", ["dict", "tuple", "dataclass", "namedtuple"])
def test_outputs_keep_their_type(kind: str) -> None:
    """Dicts, tuples, dataclasses and named tuples come back as themselves, constants where they stood."""
    model = Structured(kind).double()
    x = ZOO["mlp"].example().args[0]
    output, base = mt.ensemble(model, mt.Deep(), x, seed=0)(x), model(x)
    assert type(output) is type(base)
    if kind == "dataclass":
        assert output.note == "constant"
    if kind == "dict":
        assert output["nothing"] is None
    if kind == "tuple":
        assert output[1][1] == 7


@pytest.mark.slow
def test_hugging_face_outputs_stay_objects() -> None:
    """`.logits` works on the ensemble's output, with the member axis."""
    case = ZOO["hugging_face_bert"]
    ens = mt.ensemble(case.model(), mt.MultiHead(), case.example(), seed=0)
    x = case.example(2)
    output = ens(*x.args, **x.kwargs)
    assert type(output).__name__ == "SequenceClassifierOutput"
    assert output.logits.shape == (4, 2, 5)
    assert output["logits"] is output.logits
    assert output.loss is None


@pytest.mark.slow
def test_conversion_does_not_load_the_compiler() -> None:
    """Importing it takes seconds, and a conversion less than one. Packed builds networks on the meta device, which loads it."""
    source = """
        import sys, multitudes as mt
        from laws import METHODS
        from zoo import ZOO, refusal
        for name in ("transformer_encoder", "functional_dropout", "resnet"):
            for kind in [METHODS[label] for label in METHODS if label != "Packed" and refusal(label, name, "member") is None]:
                mt.ensemble(ZOO[name].model(), kind(), ZOO[name].example(), seed=0)
        sys.exit("torch._dynamo" in sys.modules)
    """
    folders = [str(Path(mt.__file__).parent.parent), str(Path(__file__).parents[1])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(source)], env=env, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FIVE)
def test_a_conversion_takes_about_a_second(name: str) -> None:
    """Of a thin model, on one core, by every method; the best of three, and room for processors that others keep busy."""
    case = ZOO[name]
    for label, kind in [pair for pair in METHODS.items() if refusal(pair[0], name, "member") is None]:
        seconds = []
        for _ in range(3):
            start = time.process_time()
            mt.ensemble(case.model(), kind(), case.example(), seed=0)
            seconds.append(time.process_time() - start)
            if seconds[-1] <= 1.5:
                break
        assert min(seconds) <= 1.5, f"{label}: {min(seconds):.2f} s"


SETTINGS = {
    **METHODS,
    "Packed in groups": lambda: mt.Packed(members=2, alpha=2, gamma=2),
    "Packed, pretrained": lambda: mt.Packed(members=2, alpha=1.5, pretrained=True),
    "Masksembles, grown": lambda: mt.Masksembles(members=3, width="grow", fewest=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SETTINGS, "a factory"])
def test_the_example_runs_through_at_most_two_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The given network and that of one member are observed, each once."""
    seen: list[nn.Module] = []
    observe = structure.observe

    def count(model: nn.Module, inputs: mt.Inputs, values: bool = True) -> structure.Structure:
        seen.append(model)
        return observe(model, inputs, values)

    monkeypatch.setattr(structure, "observe", count)
    x = torch.randn(3, 12)
    if name == "a factory":
        mt.ensemble(lambda ratio: MLP(12, (round(8 * ratio),), 3), mt.Packed(members=2, alpha=1.5), x, seed=0)
    else:
        mt.ensemble(MLP(12, (16, 12), 4, dropout=0.1), SETTINGS[name](), x, seed=0)
    assert 1 <= len(seen) <= 2
    assert len({id(model) for model in seen}) == len(seen)


def test_outputs_that_are_nan_are_refused() -> None:
    """NaN equals NaN in every comparison: a converted network would have proved nothing."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    net[2].bias.data[0] = float("nan")
    with pytest.raises(mt.ConversionError, match=r"its outputs are NaN, and 2\.bias is not finite"):
        mt.ensemble(net, mt.BatchEnsemble(), torch.randn(3, 4))

    class Logs(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return (super().forward(x).abs() - 100).log()

    with pytest.raises(mt.ConversionError, match="give an example with other outputs"):
        mt.ensemble(Logs(4, 3), mt.Deep(), torch.randn(3, 4))


def test_a_model_without_a_tensor_is_refused_in_its_own_words() -> None:
    class Number(nn.Linear):
        def forward(self, x: torch.Tensor) -> float:  # type: ignore[override]
            return float(super().forward(x).sum())

    with pytest.raises(mt.InputError, match="returns no tensor"):
        mt.ensemble(Number(4, 3), mt.Deep(members=2), torch.randn(2, 4))
    with pytest.raises(mt.InputError, match="no parts with names"):
        mt.ensemble(nn.Linear(4, 3), mt.TreeNet(branch_at="layer9"), torch.randn(2, 4))


class Summary(nn.Module):
    """Its second output is one number for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mid, self.head = nn.Linear(4, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.mid(self.first(x).relu()).relu()
        return self.head(hidden), hidden.norm()


def test_a_step_in_which_each_row_goes_to_one_member_is_tried() -> None:
    """Calls in eval mode run, so only a step shows that an output has no rows."""
    with pytest.raises(mt.ConversionError, match=r"each row goes to one member(.|\n)*Masksembles\(feed='all'\)"):
        mt.ensemble(Summary(), mt.Masksembles(members=2), torch.randn(4, 4))
    ens = mt.ensemble(Summary(), mt.Masksembles(members=2, feed="all"), torch.randn(4, 4))
    assert ens(torch.randn(4, 4))[1].shape == (2,)
