"""The census's sample of timm, transformers and torch-geometric, and how their networks are chosen and made small."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

from multitudes.shell.census import networks, timm_networks, transformers_networks
from multitudes.shell.census.command import take_census
from multitudes.shell.census.sample import SAMPLE

LIBRARIES = ("timm", "transformers", "geometric")


def test_the_sample(tmp_path: Path) -> None:
    """Every pair that the sample names is tried, and is right."""
    taken = take_census(libraries=LIBRARIES, sample=True, workers=2, seconds=120, out=tmp_path / "census.jsonl")
    named = {(name, method) for library in LIBRARIES for name, methods in SAMPLE[library].items() for method in methods}
    assert {(result.network, result.method) for result in taken.results} == named
    wrong = {r.key: f"{r.outcome}: {r.reason}" for r in taken.results if r.outcome != "ok"}
    assert wrong == {}


def test_the_stored_choices_are_the_smallest() -> None:
    """Counted again for one family, with all parameters in memory."""
    sizes = {}
    for name in timm.list_models(module="ghostnet"):
        sizes[name] = sum(parameter.numel() for parameter in timm.create_model(name).parameters())
    stored = timm_networks.choices()["ghostnet"]
    assert stored["name"] == min(sizes, key=lambda name: sizes[name])
    assert stored["parameters"] == min(sizes.values())


def test_every_family_of_timm_has_a_network() -> None:
    assert {network.family for network in networks.networks(["timm"])} == set(timm.list_modules())


def test_other_arguments_are_given() -> None:
    """Only to the methods that make every tensor anew."""
    (network,) = [n for n in networks.networks(["timm"]) if n.name == "test_vit(depth=2)"]
    assert len(networks.made(network, 0).blocks) == 2
    assert set(network.methods) == {"Packed", "Deep"}


def test_a_configuration_becomes_small_by_value() -> None:
    """What is four times as wide as the hidden layers stays so."""
    config = {"hidden_size": 768, "mlp_size": 3072, "num_hidden_layers": 12, "vocab_size": 30522, "num_labels": 2, "eps": 1e-5}
    small = transformers_networks.changes(config)
    assert small == {"hidden_size": 32, "mlp_size": 128, "num_hidden_layers": 2, "vocab_size": 64}


def test_configurations_inside_a_configuration_become_small() -> None:
    """Whatever their field is called."""
    inner = {"model_type": "encoder", "hidden_size": 768, "vocab_size": 30522}
    small = transformers_networks.changes({"encoder": inner, "rope": {"hidden_size": 768}})
    assert small == {"encoder": {"model_type": "encoder", "hidden_size": 32, "vocab_size": 64}}


def test_every_class_of_transformers_is_listed_once() -> None:
    names = [network.name for network in networks.networks(["transformers"])]
    assert len(names) == len(set(names)) > 200


def test_networks_of_transformers_are_small_and_run() -> None:
    chosen = [n for n in networks.networks(["transformers"]) if n.family in ("bert", "vit", "gpt2", "wav2vec2", "resnet")]
    assert len(chosen) == 5
    for network in chosen:
        model = networks.made(network, 0)
        assert sum(parameter.numel() for parameter in model.parameters()) < 3_000_000, network.name
        inputs = networks.example(network, model)
        assert all(len(tensor) == networks.ROWS for tensor in inputs.tensors())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_graphs_have_edges_without_a_batch() -> None:
    for network in networks.networks(["geometric"]):
        model = networks.made(network, 0)
        x, edges = networks.example(network, model).args
        with torch.no_grad():
            assert model(x, edges).shape == (len(x), 5)
        assert network.batch_axis == (0, None)
