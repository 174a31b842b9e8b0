"""The shell: `multitudes bench | train | predict | score | report | plan | census`. Only here are methods given as strings.

Torch and other rooms are imported inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from multitudes.errors import InputError, MultitudesError

FAILED, USAGE = 1, 2
"""Exit codes: the command failed; the command line is wrong. Ctrl-C gives 130."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Turn any PyTorch network into an efficient ensemble whose uncertainty you can trust.\n\n"
    "  multitudes bench                                   compare all methods, and write a report\n\n"
    "  multitudes plan mynets:make --example 2,3,32,32    show what a method would do to your network",
)


def _complete_method(incomplete: str) -> list[str]:
    from multitudes.shell.parse import methods_by_name

    return [name for name in methods_by_name() if name.startswith(incomplete)]


def _complete_methods(incomplete: str) -> list[str]:
    """Completes the last name of a list with commas."""
    front, comma, last = incomplete.rpartition(",")
    return [f"{front}{comma}{name}" for name in _complete_method(last)]


def _complete_task(incomplete: str) -> list[str]:
    from multitudes.shell.jobs import JOBS

    return [name for name in JOBS if name.startswith(incomplete)]


Task = Annotated[
    str,
    typer.Option(
        help="network and data: fashion, yacht, energy (embedded), cifar10, or your own MODULE:FUNCTION",
        autocompletion=_complete_task,
    ),
]
Method = Annotated[
    str, typer.Option(help="a method, such as packed or 'packed(alpha=2, gamma=2)'", autocompletion=_complete_method)
]
Methods = Annotated[
    str,
    typer.Option(help="methods, with commas: single,packed,'mimo(members=2)'; default: all", autocompletion=_complete_methods),
]
Root = Annotated[Path | None, typer.Option(help="folder of the datasets; default: the folder in MULTITUDES_DATA")]
Json = Annotated[bool, typer.Option("--json", help="print JSON, and nothing else, to standard output")]


@app.command()
def bench(
    task: Task = "fashion",
    methods: Methods = "",
    seeds: Annotated[str, typer.Option(help="seeds, with commas or as a range: 0,1,2 or 0-4")] = "0",
    budget: Annotated[str, typer.Option(help="training of each method: '10 epochs', '30 seconds' or '2e12 flops'")] = "",
    out: Annotated[Path, typer.Option(help="folder for the trials and report.html")] = Path("runs/bench"),
    workers: Annotated[int, typer.Option(help="number of processes on this machine")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="run on Ray on this machine")] = False,
    ray_address: Annotated[str | None, typer.Option(help="run on the Ray cluster at this address, such as auto")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Compare methods: train each with the same budget, score it, and write one report.

    If the sweep is interrupted, run the same command again to resume it.

      multitudes bench --methods single,packed,deep --seeds 0-2

      multitudes bench --task yacht --budget '20 seconds' --workers 2
    """
    from multitudes.shell import parse
    from multitudes.shell.jobs import find_job
    from multitudes.shell.live_table import live_table
    from multitudes.shell.steps import write_report
    from multitudes.shell.sweep import run_trials, trials
    from multitudes.shell.trial import COST_BATCH

    sweep = trials(task, parse.split_list(methods), parse.seeds(seeds), budget or None, out, root)
    with live_table(sweep, live=False if as_json else None) as table:
        rows = run_trials(sweep, workers=workers, ray=ray, ray_address=ray_address, on_end=table.update)
    job = find_job(task, root)
    fair = f"Every method has the same budget: {sweep[0].budget}. Costs are those of a call with {COST_BATCH} inputs."
    page = write_report([trial.folder for trial in sweep], out / "report.html", job, f"{job.about or job.name} {fair}")
    if as_json:
        listed = [{"name": r.name, "seed": r.seed, "method": r.method, "scores": dict(r.scores)} for r in rows]
        _print_json({"rows": listed, "report": str(page)})
        return
    Console().print(table)
    Console().print(f"report: {page}")


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="folder of the run")],
    task: Task = "fashion",
    method: Method = "packed",
    model: Annotated[str | None, typer.Option(help="your network instead of the task's: MODULE:FACTORY")] = None,
    epochs: Annotated[int | None, typer.Option(help="number of epochs; default: the task's")] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate; default: the task's")] = None,
    seed: Annotated[int, typer.Option(help="seed of weights, batches and draws")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="resume the run in the folder")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Train one ensemble, and save its best and its last epoch.

    multitudes train --method 'packed(alpha=2)' --out runs/packed
    """
    from dataclasses import replace

    from multitudes.shell.jobs import find_job
    from multitudes.shell.steps import make_ensemble
    from multitudes.training.fit import fit

    job = find_job(task, root)
    settings: dict[str, Any] = {"seed": seed}
    settings.update({key: value for key, value in (("epochs", epochs), ("lr", lr)) if value is not None})
    ensemble = make_ensemble(job, method, model, seed)
    run = fit(ensemble, job.train, replace(job.recipe, **settings), val=job.validation, out=out, resume=resume)
    last = run.metrics[-1]
    if as_json:
        _print_json({"out": str(out), "epochs": run.done, "best_epoch": run.best_epoch, "last": last})
        return
    Console().print("  ".join(f"{key} {value:.4g}" for key, value in last.items()))
    Console().print(f"{out}: best.multitude (epoch {run.best_epoch}) and last.multitude" if job.validation else f"{out}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="a .multitude file, or the folder of a run")],
    out: Annotated[Path, typer.Option(help="file to write: .safetensors")],
    task: Task = "fashion",
    data: Annotated[str, typer.Option(help="dataset: test, validation, train, or an ood set of the task")] = "test",
    model: Annotated[str | None, typer.Option(help="the network, if it is not the task's: MODULE:FACTORY")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Run an ensemble on a dataset, and save the outputs of all members.

    multitudes predict runs/packed --data digits --out digits.safetensors
    """
    from multitudes.prediction.predict import predict as run_ensemble
    from multitudes.shell.jobs import find_job
    from multitudes.shell.parse import unknown_name
    from multitudes.shell.steps import load_ensemble

    job = find_job(task, root)
    splits = {"train": job.train, "test": job.test, "validation": job.validation, **job.ood}
    datasets = {name: dataset for name, dataset in splits.items() if dataset is not None}
    if data not in datasets:
        raise unknown_name(f"dataset of {job.name}", data, datasets)
    prediction = run_ensemble(load_ensemble(run, job, model), datasets[data]).in_original_units(job.test)
    prediction.save(out)
    if as_json:
        _print_json({"out": str(out), "members": prediction.count, "examples": len(prediction)})
    else:
        Console().print(f"{out}: {prediction}")


@app.command()
def score(
    prediction: Annotated[Path, typer.Argument(help="a file of `multitudes predict`, with targets")],
    ood: Annotated[list[str] | None, typer.Option(help="NAME=FILE: prediction on an ood set; may be repeated")] = None,
    intervals: Annotated[int, typer.Option(help="bootstrap samples for 95 % intervals; 0 for none")] = 0,
    as_json: Json = False,
) -> None:
    """Score a prediction: accuracy, likelihood, calibration, diversity, out-of-distribution detection.

    multitudes score test.safetensors --ood digits=digits.safetensors
    """
    from multitudes.prediction.prediction import Prediction
    from multitudes.scores.score import score as compute_scores

    far = {}
    for text in ood or []:
        name, equals, path = text.partition("=")
        if not equals:
            name, path = Path(text).stem, text
        far[name] = Prediction.load(path)
    scores = compute_scores(Prediction.load(prediction), ood=far or None, intervals=intervals)
    print(scores.json() if as_json else scores)  # noqa: T201


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of trials, or folders that hold such folders")],
    out: Annotated[Path, typer.Option(help="page to write")] = Path("report.html"),
    task: Annotated[
        str | None, typer.Option(help="task whose images and classes to show", autocompletion=_complete_task)
    ] = None,
    title: Annotated[str | None, typer.Option(help="title of the page")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page that compares trials of `multitudes bench`.

    multitudes report runs/bench runs/other --out report.html
    """
    from multitudes.shell.jobs import find_job
    from multitudes.shell.steps import write_report

    page = write_report(runs, out, None if task is None else find_job(task, root), title)
    _print_json({"out": str(page)}) if as_json else Console().print(f"report: {page}")


@app.command()
def plan(
    factory: Annotated[str, typer.Argument(help="MODULE:FACTORY, a function that returns your network")],
    example: Annotated[str, typer.Option(help="shape of an input, batch first: 2,3,32,32")],
    method: Method = "packed",
    as_json: Json = False,
) -> None:
    """Show what a method would do to your network: which modules it converts, shares or refuses, and the cost.

    multitudes plan mynets:make --example 2,3,32,32 --method 'packed(alpha=2)'
    """
    import torch

    from multitudes.conversion.convert import plan as make_plan
    from multitudes.shell import parse
    from multitudes.shell.steps import make_network

    made = make_plan(make_network(factory), parse.method(method), torch.zeros(parse.shape(example)))
    if as_json:
        entries = {kind: [entry.name for entry in getattr(made, kind)] for kind in ("converted", "shared", "refused")}
        _print_json({"method": repr(made.method), **entries})
    else:
        print(made)  # noqa: T201
    if made.refused:
        raise typer.Exit(FAILED)


@app.command()
def census(
    only: Annotated[str, typer.Option(help="networks to try, as a glob: 'vit*', 'timm/*'")] = "*",
    methods: Annotated[
        str, typer.Option(help="methods, with commas: packed,deep; default: all", autocompletion=_complete_methods)
    ] = "",
    libraries: Annotated[
        str, typer.Option(help="libraries, with commas: timm,transformers,geometric,own; default: those installed")
    ] = "",
    sample: Annotated[bool, typer.Option("--sample", help="try a few networks of every kind, in minutes")] = False,
    workers: Annotated[int, typer.Option(help="number of processes on this machine")] = 1,
    seconds: Annotated[float, typer.Option(help="time limit of each pair")] = 60.0,
    gigabytes: Annotated[float, typer.Option(help="memory limit of each pair; on a CPU only")] = 6.0,
    device: Annotated[str, typer.Option(help="where networks are converted and compared: cpu, cuda")] = "cpu",
    out: Annotated[Path, typer.Option(help="file of the results; the page lies beside it")] = Path("census.jsonl"),
    as_json: Json = False,
) -> None:
    """Convert networks of timm, transformers and torch-geometric by every method, and compare them with plain networks.

    Each pair runs in a process of its own, with limits on time and memory. Results go to --out, line by line, and a page beside
    it shows networks × methods. If the census is interrupted, run the same command again to resume it.

      multitudes census --sample

      multitudes census --libraries timm --only 'resnet*' --methods packed,deep --workers 2
    """
    from multitudes.shell import parse
    from multitudes.shell.census.command import take_census

    taken = take_census(
        libraries=parse.split_list(libraries), only=only, methods=parse.split_list(methods), sample=sample, workers=workers,
        seconds=seconds, gigabytes=gigabytes, device=device, out=out, progress=False if as_json else None,
    )  # fmt: skip
    if as_json:
        _print_json(taken.summary())
    else:
        Console().print(taken)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))  # noqa: T201


def main(arguments: list[str] | None = None) -> None:
    """Runs the `multitudes` command. Prints errors of this package as one line; the exit code is 1, or 2 for wrong input."""
    sys.exit(exit_code(lambda: app(arguments, standalone_mode=True)))


def exit_code(run: Callable[[], Any]) -> int:
    """Runs a command, prints its error if it has one, and returns the exit code."""
    error = Console(stderr=True)
    try:
        run()
    except MultitudesError as wrong:
        error.print(f"[red]multitudes:[/red] {escape(str(wrong))}", highlight=False, soft_wrap=True)
        return USAGE if isinstance(wrong, InputError) else FAILED
    except KeyboardInterrupt:
        error.print("stopped")
        return 130
    return 0
