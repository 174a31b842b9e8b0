"""save and load: one safetensors file, with weights under the base model's names and the method as JSON in its header.

The file is written whole or not at all. A digest over the JSON and every tensor detects damaged or altered files. Nothing is
unpickled, and the JSON can name only methods that exist here.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multitudes import models
from multitudes.conversion.anatomy.architecture import differences, differing_arguments, kind_of, settings
from multitudes.conversion.anatomy.initialise import build
from multitudes.conversion.cut_layers import empty_compact_network
from multitudes.conversion.plan import Counts, Entry, Plan
from multitudes.conversion.resize.resize import Resizing
from multitudes.engine import EXECUTORS, MODES
from multitudes.engine.draws import drawn_names
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import (
    Factory,
    as_same_kind,
    copy_with,
    detached_copy,
    named_tensors,
    on_meta,
    owning_module,
    unwrapped,
)
from multitudes.engine.proof.executors import ALL
from multitudes.engine.proof.outcome import clean_autograd
from multitudes.engine.selected_output import selected
from multitudes.engine.sharding import is_sharded
from multitudes.engine.state import Engine, Traits
from multitudes.engine.undisturbed import undisturbed
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError, FileError, InputError, lacks_memory
from multitudes.files.constants import CONSTANT, constants_of, with_constants
from multitudes.files.old_settings import current_settings
from multitudes.method import Given, Method
from multitudes.prediction.predict import checked_ensemble
from multitudes.prediction.temperature import Calibrator
from multitudes.settings import takes_names
from multitudes.storage import FORMAT, _safetensors, digest, write_tensors

IN_CHECKPOINT = "multitudes"
"""Key of a checkpoint of torch under which an ensemble is described."""


@takes_names()
def save(ensemble: Ensemble, path: str | PathLike[str]) -> None:
    """Writes the ensemble to one file. An old file stays until the new one is complete.

    ensemble   the ensemble, also one that is compiled or wrapped for several processes
    path       the file
    """
    tensors, text = contents(checked_ensemble(ensemble, "save"))
    write_tensors(Path(path), tensors, {"multitudes": text, "sha256": digest(tensors, text)})


def contents(ensemble: Ensemble) -> tuple[dict[str, Tensor], str]:
    """Returns what a file of an ensemble holds: its tensors on the CPU by name, and the JSON about it."""
    if ensemble.is_frozen:
        raise FileError("a frozen ensemble cannot be saved: save the one that it was made from, and freeze that after mt.load")
    extra = [n for n, part in ensemble.template.named_modules() if type(part).get_extra_state is not nn.Module.get_extra_state]
    if extra:
        raise FileError(
            f"{extra[0] or 'the model'} has extra state (get_extra_state), which a file cannot hold: store it in buffers"
        )
    if type(ensemble.method).prepare is not Method.prepare and _arguments(ensemble.base) is None:
        Inputs.like(ensemble.plan.example, torch.device("meta"))  # refuses an example that load could not rebuild
    redrawn = drawn_names(ensemble.template)
    copy = is_sharded(ensemble)  # its whole tensors are freed afterwards
    tensors = {
        name: tensor.detach().to("cpu", copy=copy).contiguous()
        for name, tensor in named_tensors(ensemble.template)
        if name not in redrawn
    }
    return tensors | constants_of(ensemble), json.dumps(_described(ensemble), sort_keys=True)


@undisturbed
def load(path: str | PathLike[str], model: nn.Module | Factory | None = None) -> Ensemble:
    """Loads an ensemble. `model` (a module or a factory) gives the base model's architecture; its weights are not used.

    The ensemble gets the mode, dtypes and executors with which it was saved, and the model's device. Networks of
    `multitudes.models` need no `model`: the file has their arguments. The path may also be a checkpoint that Lightning's
    Trainer wrote of an `EnsembleModule`; torch reads it with weights_only=True, which runs no code of the file.
    """
    if isinstance(path, nn.Module):
        raise InputError("the path comes first, then the model: load(path, model)")
    source = Path(path)
    about, tensors = _read(source)
    if model is not None and not isinstance(model, nn.Module) and (isinstance(model, type) or not callable(model)):
        raise InputError(f"model must be an nn.Module or a factory, lambda ratio: Net(...), not {model!r}")
    try:
        network = _network(source, about, tensors) if model is None else model
        ensemble = _rebuilt(source, about, tensors, network)
        others = differing_arguments(about["architecture"], settings(ensemble.base))
    except FileError:
        raise
    except Exception as error:  # the JSON may hold anything
        if lacks_memory(error):
            raise
        raise FileError(
            f"{source} does not describe an ensemble of this model: {type(error).__name__}: {error}. "
            "Load it with the model and the version of multitudes that saved it"
        ) from error
    if others:
        warnings.warn(
            f"outputs may differ from those of the ensemble that was saved in {source}: {'; '.join(others[:6])}. "
            "If forward reads them, pass a model like the saved one",
            stacklevel=3,
        )
    return ensemble


def _network(source: Path, about: dict[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Rebuilds a network of `multitudes.models` from the arguments in the file."""
    kind = getattr(models, str(about["model"]), None)
    if about["arguments"] is None or not isinstance(kind, type) or not issubclass(kind, models.Network):
        raise FileError(f"{source} holds an ensemble of a {about['model']}: pass such a model, mt.load({source.name!r}, model)")
    dtype = next((t.dtype for t in tensors.values() if t.is_floating_point()), None)
    with torch.device("meta"):
        return kind(**about["arguments"]).to(dtype)


def _prepared(
    source: Path, about: dict[str, Any], method: Method, model: nn.Module | Factory, constants: Mapping[str, Tensor]
) -> tuple[nn.Module, nn.Module]:
    """Returns the base model, and the network of one member as the method prepares it."""
    model = selected(unwrapped(model), about.get("output"))
    factory = None if isinstance(model, nn.Module) else model
    base = with_constants(model if isinstance(model, nn.Module) else build(model, 1.0, int(about["seed"])), constants)
    if type(method).prepare is Method.prepare:
        return base, base
    if wrong := _other_settings(about, base):
        raise FileError(f"{source} is of another architecture: {'; '.join(wrong[:6])}. Pass a model like the saved one")
    place = next(tensor.device for _, tensor in named_tensors(base))
    inputs = Inputs.like(about["plan"]["example"], place)
    given = Given(base, inputs, factory, int(about["seed"]), _at(source, about), about["batch_axis"], _resizing(about))
    network = _member(about, method, given)
    for name in about["plan"].get("keep", ()):
        method.bake(network.get_submodule(name))
    method.fit_shapes(network, inputs, about["batch_axis"])
    return base, network


def _resizing(about: dict[str, Any]) -> Resizing | None:
    """Returns how the network of one member was made, if the file says so."""
    if not (saved := about.get("resizing")):
        return None
    return Resizing(**{**saved, "rounded": {name: tuple(pair) for name, pair in saved["rounded"].items()}})


def _member(about: dict[str, Any], method: Method, given: Given) -> nn.Module:
    """Returns the network of one member: made as it was, or if that gives another one, made anew."""
    if given.resizing is not None:
        try:
            network = method.prepare(given)
        except ConversionError:  # of another version of its library
            network = None
        if network is not None and not differences(about["member"], settings(network)):
            return network
    return method.prepare(dataclasses.replace(given, resizing=None))


def _other_settings(about: dict[str, Any], model: nn.Module) -> list[str]:
    """Lists how a model differs from the saved one in its class and its layers' settings."""
    wrong = differences(about["architecture"], settings(model), common=about["torch"] != torch.__version__)
    if kind_of(model) != about["model"]:
        wrong.insert(0, f"the file has a {about['model']}, and the model is a {kind_of(model)}")
    return wrong


def _at(source: Path, about: dict[str, Any]) -> dict[str, Method]:
    """Returns the method of each module that has its own settings (at=)."""
    others = about["plan"]["at"]
    return {name: _method(source, {"method": about["method"], "settings": other}) for name, other in others.items()}


def _rebuilt(source: Path, about: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module | Factory) -> Ensemble:
    method = _method(source, about)
    constants = {name: tensors.pop(name) for name in list(tensors) if name.startswith(CONSTANT)}
    base, network = _prepared(source, about, method, model, constants)
    if about.get("compact"):
        method.bake(network)
        network = empty_compact_network(network, tensors, frozenset(about["owned"]))
    template = _filled(source, about, network, tensors, [] if network is not base else _other_settings(about, base))
    engine = Engine(
        template,
        method.members,
        frozenset(about["owned"]),
        frozenset(about["shared_norms"]),
        batch_axis=about["batch_axis"],
        chunk=about["chunk"],
        summed=frozenset(about.get("summed", ())),
        traits=_traits(about),
        input_bytes=float(about.get("input_bytes", 0)),
    )
    engine.refresh()
    if about["torch"] == torch.__version__:  # with another torch, only the loop is proven, the others are tried again
        engine.proven = {mode: tuple(about["proven"][mode]) for mode in MODES}
        engine.picked = {mode: about["picked"][mode] for mode in MODES}
        engine.tuned = {device: {mode: names[mode] for mode in MODES} for device, names in about.get("tuned", {}).items()}
        engine.why, engine.row_axes = dict(about["why"]), dict(about["row_axes"])
        engine.untried = frozenset(about.get("untried", ()))
    else:
        engine.untried = ALL
    used = (engine.picked, *engine.tuned.values())
    unknown = {name for mode in MODES for name in (*engine.proven[mode], *(names[mode] for names in used))} - EXECUTORS.keys()
    if unknown:
        raise FileError(
            f"{source} names executors that this version does not have: {', '.join(sorted(map(str, unknown)))}. "
            "Load it with the version of multitudes that saved it"
        )
    ens = Ensemble(
        engine,
        method,
        task=about["task"],
        seed=int(about["seed"]),
        base=on_meta(base),
        plan=_planned(source, about, method),
        compact=bool(about.get("compact")),
    )
    ens.class_axis = about.get("class_axis")
    ens.calibrator = Calibrator(**about["calibrator"]) if about.get("calibrator") else None
    if "generator" in about:
        ens.generator.set_state(torch.frombuffer(bytearray.fromhex(about["generator"]), dtype=torch.uint8))
    if method.draws:
        ens.redraw()
    return ens


@clean_autograd()
def load_into(model: nn.Module, checkpoint: str | PathLike[str] | Mapping[str, Tensor]) -> nn.Module:
    """Returns a copy of the model with the weights of a safetensors file or a state dict."""
    state = checkpoint if isinstance(checkpoint, Mapping) else _safetensors(Path(checkpoint))[1]
    new = detached_copy(model, {})
    try:
        new.load_state_dict(dict(state))
    except RuntimeError as error:
        where = "the state dict" if isinstance(checkpoint, Mapping) else str(checkpoint)
        raise FileError(
            f"{where} is not a checkpoint of this {type(model).__name__} (give one of the same architecture): {error}"
        ) from error
    return new


def _described(ensemble: Ensemble) -> dict[str, Any]:
    """Describes an ensemble as JSON, without its tensors."""
    from multitudes.version import __version__

    engine = ensemble.engine
    modes = {name: part.training for name, part in ensemble.template.named_modules()}
    resizing = getattr(ensemble.template, "resizing", None)
    made = isinstance(resizing, Resizing) and bool(resizing.found)
    return {
        "format": FORMAT,
        "multitudes": __version__,
        "torch": torch.__version__,
        "model": kind_of(ensemble.base),
        "arguments": _arguments(ensemble.base),
        "method": type(ensemble.method).__name__,
        "module": type(ensemble.method).__module__,
        "settings": ensemble.method.settings(),
        "task": ensemble.task,
        "output": ensemble.selected_output,
        "class_axis": ensemble.class_axis,
        "seed": ensemble.seed,
        "calibrator": ensemble.calibrator and ensemble.calibrator.settings(),
        "generator": ensemble.generator.get_state().numpy().tobytes().hex(),
        "owned": sorted(engine.owned),
        "summed": sorted(engine.summed),
        "shared_norms": sorted(engine.shared_norms),
        "batch_axis": engine.batch_axis,
        "chunk": engine.chunk,
        "input_bytes": engine.input_bytes,
        "compact": ensemble.is_compact,
        "traits": {k: sorted(v) if isinstance(v, frozenset) else v for k, v in vars(engine.traits).items()},
        "proven": engine.proven,
        "picked": engine.picked,
        "tuned": engine.tuned,
        "row_axes": engine.row_axes,
        "why": engine.why,
        "untried": sorted(engine.untried),
        "training": sorted(name for name, mode in modes.items() if mode),
        "frozen": sorted(n for n, p in ensemble.template.named_parameters() if not p.requires_grad),
        "architecture": settings(ensemble.base),
        "resizing": dataclasses.asdict(resizing) if made else None,  # type: ignore[arg-type]
        "member": settings(ensemble.template) if made else None,
        "plan": {k: v for k, v in dataclasses.asdict(ensemble.plan).items() if k != "method"},
    }


def _arguments(base: nn.Module) -> dict[str, Any] | None:
    """Returns the arguments of a network of `multitudes.models`, from which `load` rebuilds it; None for other networks."""
    ours = isinstance(base, models.Network) and getattr(models, type(base).__name__, None) is type(base)
    return base.arguments if ours else None  # type: ignore[return-value]


def _checkpoint(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Reads the ensemble in a checkpoint of torch, which `integrations.lightning` described there. No code of it is run."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # its parts may be anything
        raise FileError(
            f"{path} is a pickled checkpoint with more than tensors and plain values, or damaged: nothing of it is loaded. "
            "Save the ensemble itself, mt.save(ens, path)"
        ) from error
    about = found.get(IN_CHECKPOINT) if isinstance(found, dict) else None
    if not isinstance(about, dict):
        raise FileError(
            f"{path} is a checkpoint of torch without an ensemble: train lightning.EnsembleModule(ens), whose checkpoints "
            "have one, or load the checkpoint of a network by Deep.from_checkpoints"
        )
    inside = {name.removeprefix(about["prefix"]): tensor for name, tensor in found["state_dict"].items()}
    tensors = {**about["beside"], **{name: inside[name].contiguous() for name in about["names"] if name in inside}}
    return {"multitudes": about["text"], "sha256": digest(tensors, about["text"])}, tensors


def _is_archive(path: Path) -> bool:
    """Whether a file begins as torch's checkpoints do, which are zip archives."""
    if not path.is_file():  # to open a pipe would wait for ever
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:  # told by who reads the file
        return False


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    header, tensors = _checkpoint(path) if _is_archive(path) else _safetensors(path)
    if "multitudes" not in header or "sha256" not in header:
        raise FileError(
            f"{path} was not written by mt.save: pass a file that was, or load checkpoints by Deep.from_checkpoints"
        )
    if digest(tensors, header["multitudes"]) != header["sha256"]:
        raise FileError(f"{path} is damaged or was altered: its contents do not match its digest. Get or save it again")
    try:
        about = json.loads(header["multitudes"])
        if about["format"] > FORMAT:
            raise FileError(f"{path} was saved by a newer version, multitudes {about['multitudes']}: update multitudes")
        missing = {"model", "method", "settings"} - about.keys()
        if missing:
            raise FileError(f"{path} is incomplete, its header has no {', '.join(sorted(missing))}: save it again")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FileError(f"{path} does not describe an ensemble (save it again): {error}") from error
    return about, tensors


def _method(path: Path, about: dict[str, Any]) -> Method:
    known = {kind.__name__: kind for kind in Method.all()}
    if about["method"] not in known:
        module = str(about.get("module", ""))
        named = module != "__main__" and all(part.isidentifier() for part in module.split("."))
        first = f"type import {module} first" if named else "import the module that defines it"
        raise FileError(
            f"{path} has the unknown method {about['method']!r}: {first}, or load the file with the version of multitudes that "
            f"saved it. Known are {', '.join(known)}"
        )
    kind = known[about["method"]]
    fields = {field.name for field in dataclasses.fields(kind)}
    settings = current_settings(about["method"], about["settings"])
    unknown = settings.keys() - fields
    if unknown:
        raise FileError(
            f"{path} has settings that {about['method']} does not know: {', '.join(sorted(unknown))}. "
            "Load it with the version of multitudes that saved it"
        )
    try:
        return kind(**settings)
    except (InputError, TypeError) as error:
        raise FileError(f"{path} is damaged or of another version of multitudes, its settings are wrong: {error}") from error


def _filled(path: Path, about: dict[str, Any], model: nn.Module, tensors: dict[str, Tensor], others: list[str]) -> nn.Module:
    """Returns a copy of the model with the file's tensors. `others` lists differences in class and settings, for the error."""
    owned, frozen = {*about["owned"], *about.get("summed", ())}, set(about["frozen"])
    members = about["settings"]["members"]
    redrawn = drawn_names(model)
    tensors = tensors | {n: _zeros(b, members, tensors, n) for n, b in model.named_buffers() if n in redrawn}
    wrong = [f"no {name}" for name, _ in named_tensors(model) if name not in tensors]
    wrong += [f"unknown {name}" for name in tensors.keys() - dict(named_tensors(model)).keys()]
    values = {}
    for name, tensor in named_tensors(model):
        expected = (members, *tensor.shape) if name in owned else tuple(tensor.shape)
        if name in tensors and tuple(tensors[name].shape) != expected:
            wrong.append(f"{name} is {list(tensors[name].shape)} in the file and {list(expected)} in the model")
        if name in tensors:
            place = "cpu" if tensor.is_meta else tensor.device
            values[name] = as_same_kind(tensor, tensors[name].to(place, copy=True))  # copied into aligned memory
            values[name].requires_grad_(isinstance(tensor, nn.Parameter) and name not in frozen)
    if wrong or others:
        raise FileError(
            f"{path} is of another architecture: {'; '.join([*others[:1], *wrong, *others[1:]][:6])}. "
            "Pass a model like the saved one"
        )
    template = copy_with(model, values)
    training = set(about["training"])
    for name, part in template.named_modules():
        part.training = name in training
    return template


def _zeros(buffer: Tensor, members: int, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Makes a buffer for the members' draws. Noise has the dtype of the layer's weights."""
    beside = (t.dtype for n, t in tensors.items() if owning_module(n) == owning_module(name) and t.is_floating_point())
    dtype = next(beside, buffer.dtype) if buffer.is_floating_point() else buffer.dtype
    return torch.zeros(members, *buffer.shape, dtype=dtype, device="cpu" if buffer.is_meta else buffer.device)


OLD_TRAITS = {
    "copies": "copy_per_member", "blind": "no_replay", "private": "written_buffers", "steered": "data_dependent",
    "selects": "ragged", "slots": "vmap_per_member", "fold_slots": "fold_per_member", "plain": "plain_weights",
}  # fmt: skip
"""Names of traits in files of version 0.1.0."""


def _traits(about: dict[str, Any]) -> Traits:
    saved: dict[str, Any] = {
        OLD_TRAITS.get(k, k): frozenset(v) if isinstance(v, list) else v for k, v in about["traits"].items()
    }
    return Traits(**saved)


def _planned(source: Path, about: dict[str, Any], method: Method) -> Plan:
    saved = dict(about["plan"])
    saved["at"] = _at(source, about)
    for kind in ("converted", "shared", "refused"):
        saved[kind] = tuple(Entry(**entry) for entry in saved[kind])
    saved["counts"] = Counts(**saved["counts"]) if saved["counts"] else None
    saved["proven"] = {mode: tuple(names) for mode, names in saved["proven"].items()}
    saved["notes"], saved["keep"] = tuple(saved["notes"]), tuple(saved.get("keep", ()))
    return Plan(method=method, **saved)
