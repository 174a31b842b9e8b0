"""The shell: `multitudes bench | train | predict | score | report | plan`. The only place where methods are strings."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from torch import nn

from multitudes.conversion.convert import ensemble as converted
from multitudes.conversion.convert import plan as planned
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, MultitudesError
from multitudes.files.ensemble_file import load
from multitudes.prediction.predict import predict as predicted
from multitudes.prediction.prediction import Prediction
from multitudes.scores.score import score as scored
from multitudes.shell import parse as spoken
from multitudes.shell.jobs import JOBS, Job, job
from multitudes.shell.live_table import watching
from multitudes.shell.sweep import run_trials as run_bench
from multitudes.shell.sweep import trials
from multitudes.shell.trial import CALL, in_original_units
from multitudes.training.fit import fit

WRONG, USAGE = 1, 2
"""Exit codes: something failed; what was typed cannot be meant. 130 is Ctrl-C."""

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False,
    help="Any PyTorch network as an efficient ensemble, with uncertainty to trust.\n\n"
    "  multitudes bench                                   all methods on the embedded task, and a report\n\n"
    "  multitudes plan mynets:make --example 2,3,32,32    what a method would do to your network",
)  # fmt: skip


def _methods(incomplete: str) -> list[str]:
    return [name for name in spoken.methods_by_name() if name.startswith(incomplete)]


def _listed(incomplete: str) -> list[str]:
    """The same after commas."""
    front, comma, last = incomplete.rpartition(",")
    return [f"{front}{comma}{name}" for name in _methods(last)]


def _tasks(incomplete: str) -> list[str]:
    return [name for name in JOBS if name.startswith(incomplete)]


Task = Annotated[
    str, typer.Option(help="fashion, yacht, energy (embedded), cifar10, or your own MODULE:FUNCTION", autocompletion=_tasks)
]
Root = Annotated[Path | None, typer.Option(help="where data are; by default the folder that MULTITUDES_DATA names")]
Json = Annotated[bool, typer.Option("--json", help="print JSON, and nothing else")]
Several = Annotated[
    str, typer.Option(help="with commas: single,packed,'mimo(members=2)'; by default all", autocompletion=_listed)
]
Named = Annotated[str, typer.Option("--method", help="such as packed or 'packed(alpha=2, gamma=2)'", autocompletion=_methods)]


@app.command()
def bench(
    task: Task = "fashion",
    methods: Several = "",
    seeds: Annotated[str, typer.Option(help="with commas, or a range: 0,1,2 or 0-4")] = "0",
    budget: Annotated[str, typer.Option(help="the same for all: '10 epochs', '30 seconds' or '2e12 flops'")] = "",
    out: Annotated[Path, typer.Option(help="the folder of all trials, and of report.html")] = Path("runs/bench"),
    workers: Annotated[int, typer.Option(help="processes of this machine")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="on Ray, on this machine")] = False,
    ray_address: Annotated[str | None, typer.Option(help="on the Ray cluster at this address, such as auto")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Compare methods: each is trained by the same budget, scored, and shown beside the others.

    Stopped, it goes on when the same is typed again.

      multitudes bench --methods single,packed,deep --seeds 0-2

      multitudes bench --task yacht --budget '20 seconds' --workers 2
    """
    wanted = trials(task, spoken.split_list(methods), _seeds(seeds), budget or None, out, root)
    with watching(wanted, live=False if as_json else None) as watch:
        rows = run_bench(wanted, workers=workers, ray=ray, ray_address=ray_address, tell=watch.update)
    what = job(task, root)
    fair = f"Every method by the same budget: {wanted[0].budget}. Costs are of a call with {CALL} inputs."
    title = f"{what.about or what.name} {fair}"
    page = _written([trial.folder for trial in wanted], out / "report.html", what, title)
    if as_json:
        found = [{"name": r.name, "seed": r.seed, "method": r.method, "scores": dict(r.scores)} for r in rows]
        _print_json({"rows": found, "report": str(page)})
        return
    Console().print(watch)
    Console().print(f"report: {page}")


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="the folder of the run")],
    task: Task = "fashion",
    method: Named = "packed",
    model: Annotated[str | None, typer.Option(help="your network for the task's data: MODULE:FACTORY")] = None,
    epochs: Annotated[int | None, typer.Option(help="by default the task's")] = None,
    lr: Annotated[float | None, typer.Option(help="the learning rate, by default the task's")] = None,
    seed: int = 0,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in the folder")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Train one ensemble, and keep its best and its last epoch.

    multitudes train --method 'packed(alpha=2)' --out runs/packed
    """
    what = job(task, root)
    ensemble = _made(what, method, model, seed)
    settings: dict[str, Any] = {"seed": seed}
    settings.update({key: value for key, value in (("epochs", epochs), ("lr", lr)) if value is not None})
    run = fit(ensemble, what.train, replace(what.recipe, **settings), val=what.validation, out=out, resume=resume)
    last = run.metrics[-1]
    if as_json:
        _print_json({"out": str(out), "epochs": run.done, "best_epoch": run.best_epoch, "last": last})
        return
    Console().print("  ".join(f"{key} {value:.4g}" for key, value in last.items()))
    Console().print(f"{out}: best.multitude (epoch {run.best_epoch}) and last.multitude" if what.validation else f"{out}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="a .multitude file, or the folder of a run")],
    out: Annotated[Path, typer.Option(help="the file to write: .safetensors")],
    task: Task = "fashion",
    data: Annotated[str, typer.Option(help="test, validation, train, or a foreign set of the task")] = "test",
    model: Annotated[str | None, typer.Option(help="the network, if it is your own: MODULE:FACTORY")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """The members' answers to a set, as a file.

    multitudes predict runs/packed --data digits --out digits.safetensors
    """
    what = job(task, root)
    sets = {"train": what.train, "test": what.test, "validation": what.validation, **what.ood}
    known = {name: found for name, found in sets.items() if found is not None}
    if data not in known:
        raise spoken.unknown_name(f"set of {what.name}", data, known)
    ensemble = _loaded(run, what, model)
    prediction = in_original_units(predicted(ensemble, known[data]), what.test)
    prediction.save(out)
    said = {"out": str(out), "members": prediction.count, "examples": len(prediction)}
    _print_json(said) if as_json else Console().print(f"{out}: {prediction}")


@app.command()
def score(
    prediction: Annotated[Path, typer.Argument(help="what `multitudes predict` wrote, with targets")],
    ood: Annotated[list[str] | None, typer.Option(help="NAME=FILE, a prediction of a foreign set; several times")] = None,
    intervals: Annotated[int, typer.Option(help="bootstrap samples for 95 % intervals")] = 0,
    as_json: Json = False,
) -> None:
    """Accuracy, likelihood, calibration, diversity, and detection of what is foreign.

    multitudes score test.safetensors --ood digits=digits.safetensors
    """
    far = {}
    for text in ood or []:
        name, equals, path = text.partition("=")
        if not equals:
            name, path = Path(text).stem, text
        far[name] = Prediction.load(path)
    found = scored(Prediction.load(prediction), ood=far or None, intervals=intervals)
    print(found.json()) if as_json else print(found)  # noqa: T201


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of trials, or folders of such")],
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
    task: Annotated[str | None, typer.Option(help="whose images and classes to show", autocompletion=_tasks)] = None,
    title: Annotated[str | None, typer.Option(help="of the page")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """One page that compares any runs.

    multitudes report runs/bench runs/other --out report.html
    """
    page = _written(runs, out, None if task is None else job(task, root), title)
    _print_json({"out": str(page)}) if as_json else Console().print(f"report: {page}")


@app.command()
def plan(
    factory: Annotated[str, typer.Argument(help="MODULE:FACTORY, a function that returns your network")],
    example: Annotated[str, typer.Option(help="the shape of an input, rows first: 2,3,32,32")],
    method: Named = "packed",
    as_json: Json = False,
) -> None:
    """What a method would do to your network: every module as converted, shared or refused, and what it costs.

    multitudes plan mynets:make --example 2,3,32,32 --method 'packed(alpha=2)'
    """
    network = _network(factory)
    found = planned(network, spoken.method(method), torch.zeros(_shape(example)))
    if as_json:
        entries = {kind: [entry.name for entry in getattr(found, kind)] for kind in ("converted", "shared", "refused")}
        _print_json({"method": repr(found.method), **entries})
    else:
        print(found)  # noqa: T201
    if found.refused:
        raise typer.Exit(WRONG)


def _network(factory: str) -> nn.Module:
    made = spoken.import_by_name(factory)
    network = made() if not isinstance(made, nn.Module) and callable(made) else made
    if not isinstance(network, nn.Module):
        raise InputError(f"{factory} gives a {type(network).__name__}: a function that returns an nn.Module is needed")
    return network


def _made(what: Job, method: str, model: str | None, seed: int) -> Ensemble:
    torch.manual_seed(seed)
    network = what.network() if model is None else _network(model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return converted(network, what.method(method), what.example, seed=seed, task=what.task).to(device)


def _loaded(run: Path, what: Job, model: str | None) -> Ensemble:
    files = [run] if run.is_file() else [run / "best.multitude", run / "last.multitude"]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise InputError(f"{run} is no .multitude file, and no folder with best.multitude or last.multitude")
    return load(file, what.network() if model is None else _network(model))


def _written(folders: list[Path], out: Path, what: Job | None, title: str | None = None) -> Path:
    from multitudes.report import report as write_report
    from multitudes.report.row import load_rows

    found = load_rows(folders)
    tasks = {row.settings.get("task") for row in found}
    if what is None and len(tasks) == 1 and tasks <= {*JOBS}:  # whose images these are
        with contextlib.suppress(MultitudesError):
            what = job(str(*tasks))
    images = None if what is None or len(what.test.shape) != 3 else what.test.raw(slice(None))
    named: dict[str, Any] = {} if what is None else {"classes": what.test.classes, "images": images, "title": what.about}
    if title is not None:
        named["title"] = title
    return write_report(found, out, **named)


def _seeds(text: str) -> list[int]:
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            found += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError as error:
        raise InputError(f"--seeds {text!r}: numbers with commas, or a range: 0,1,2 or 0-4") from error
    if not found:
        raise InputError(f"--seeds {text!r} names none: a range goes upwards, 0-4")
    return found


def _shape(text: str) -> list[int]:
    try:
        shape = [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError as error:
        raise InputError(f"--example {text!r}: the shape of an input, rows first: 2,3,32,32") from error
    if min(shape) < 1:
        raise InputError(f"--example {text!r}: sizes are at least 1")
    return shape


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))  # noqa: T201


def main(arguments: list[str] | None = None) -> None:
    """What `multitudes` runs: errors of ours are said in a line, and end with 1, or 2 where what was typed cannot be meant."""
    sys.exit(status(lambda: app(arguments, standalone_mode=True)))


def status(run: Callable[[], Any]) -> int:
    """The exit code of a command."""
    error = Console(stderr=True)
    try:
        run()
    except MultitudesError as wrong:
        error.print(f"[red]multitudes:[/red] {escape(str(wrong))}", highlight=False, soft_wrap=True)
        return USAGE if isinstance(wrong, InputError) else WRONG
    except KeyboardInterrupt:
        error.print("stopped")
        return 130
    return 0
