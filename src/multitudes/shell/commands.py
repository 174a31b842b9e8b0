"""The shell: `multitudes init | bench | train | predict | score | report | export | serve | plan | census | reproduce`.

Only here are methods strings. Torch and other rooms are imported inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.main import get_command

from multitudes.errors import InputError, MultitudesError
from multitudes.shell.messages import recipe_hint, show_warning
from multitudes.shell.options import (
    JOB_NAMES,
    METHOD,
    Calibrated,
    Force,
    JobName,
    Json,
    Method,
    Methods,
    OwnJob,
    Root,
    RunJob,
    RunModel,
    complete_job,
    complete_method,
    complete_methods,
)
from multitudes.shell.printing import print_json, print_line, print_notes
from multitudes.shell.reproduce.command import reproduce
from multitudes.shell.scored_files import calibrated_scores, ood_files, row_folder, tensor_file

FAILED, USAGE = 1, 2
"""Exit codes: the command failed; the command line is wrong. Ctrl-C gives 130."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Turn any PyTorch network into an efficient ensemble whose uncertainty you can trust.\n\n"
    "  multitudes bench             compare all methods on a small job, with a report\n\n"
    "  multitudes init myjob.py     write a job with your own network and data\n\n"
    "  multitudes plan mynets:make --example 2,3,32,32    show what a method would do",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from multitudes.version import __version__

        print(f"multitudes {__version__}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="show the version and exit")
    ] = False,
) -> None:
    pass


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="Python file to write")] = Path("myjob.py"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a job of your own to start from: a network, data and a recipe in one Python file that runs as it is.

    multitudes init myjob.py
    """
    from multitudes.shell.starter import write_job

    command = write_job(file, force)
    if as_json:
        print_json({"out": str(file), "next": command})
        return
    print(f"{file}: put your network and your data into it. It runs as it is:\n\n  {command}\n")  # noqa: T201


@app.command()
def bench(
    job_name: JobName = "fashion",
    methods: Methods = "",
    seeds: Annotated[str, typer.Option(help="seeds, with commas or as a range: 0,1,2 or 0-4")] = "0",
    epochs: Annotated[int | None, typer.Option(hidden=True)] = None,
    budget: Annotated[str, typer.Option(help="training of each method: '10 epochs', '30 seconds' or '2e12 flops'")] = "",
    out: Annotated[Path, typer.Option(help="folder for the trials and report.html")] = Path("runs/bench"),
    workers: Annotated[int, typer.Option(help="number of processes on this machine")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="run on Ray on this machine")] = False,
    ray_address: Annotated[str | None, typer.Option(help="run on the Ray cluster at this address, such as auto")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="replace trials of other settings, and start unfinished ones anew")
    ] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Compare methods: train each with the same budget, score it, and write one report.

    If the sweep is interrupted, run the same command again to resume it.

      multitudes bench --methods single,packed,deep --seeds 0-2

      multitudes bench --job yacht --budget '20 seconds' --workers 2
    """
    if epochs is not None:
        raise InputError(f"bench has no --epochs: type --budget '{epochs} epochs'")

    from multitudes.shell import own_names, typed

    texts, numbers = typed.split_list(methods), typed.seeds(seeds)
    typed.check_methods(texts, job_name)
    own_names.check_job(job_name)
    if budget:
        typed.amount(budget)

    from multitudes.shell.jobs import find_job
    from multitudes.shell.live_table import live_table
    from multitudes.shell.steps import write_report
    from multitudes.shell.sweep import check_folders, run_trials, trials

    sweep = trials(job_name, texts, numbers, budget or None, out, root)
    check_folders(sweep, out / "report.html", force)
    with live_table(sweep, live=False if as_json else None) as table:
        rows = run_trials(sweep, workers=workers, ray=ray, ray_address=ray_address, on_end=table.update)
    job = find_job(job_name, root)
    page = write_report([trial.folder for trial in sweep], out / "report.html", job)
    if as_json:
        listed = [{"name": r.name, "seed": r.seed, "method": r.method, "scores": dict(r.scores)} for r in rows]
        print_json({"rows": listed, "report": str(page.path)})
        return
    Console().print(table)
    print_line(f"report: {page.path}")


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="folder of the run")],
    job_name: OwnJob = None,
    method: Annotated[str | None, typer.Option(help=f"{METHOD}; default: packed", autocompletion=complete_method)] = None,
    model: Annotated[str | None, typer.Option(help="your network instead of the job's: MODULE:FACTORY")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="number of epochs; default: the job's")] = None,
    lr: Annotated[float | None, typer.Option(min=0, help="learning rate; default: the job's")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="seed of weights, batches and draws; default: 0")] = None,
    name: Annotated[str | None, typer.Option(help="name of the run in reports; default: the method")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="resume the run in the folder; other options may be left out")
    ] = False,
    force: Force = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Train one ensemble, save its best and its last epoch, and score it for `multitudes report`.

    multitudes train --method 'packed(alpha=2)' --out runs/packed

    multitudes train --job myjob:job --method deep --out runs/deep && multitudes report runs
    """
    from multitudes.shell.own_names import check_import, check_job
    from multitudes.shell.told import Told, told_to_train
    from multitudes.shell.typed import check_methods

    options: dict[str, Any] = {
        "job": job_name,
        "method": method,
        "model": model,
        "epochs": epochs,
        "lr": lr,
        "seed": seed,
        "name": name,
    }
    options["root"] = None if root is None else str(root)
    given = {key: value for key, value in options.items() if value is not None}
    if force and resume:
        raise InputError("--force replaces the run, and --resume continues it: leave one out")
    told = Told(**given) if force else told_to_train(out, given, resume)
    check_methods([told.method], told.job)
    check_job(told.job, told.folder)
    if told.model is not None:
        check_import(told.model, "--model", told.folder)

    from multitudes.shell.steps import train_run

    run, row = train_run(told, out, resume=resume, force=force)
    if as_json:
        listed = {"out": str(out), "epochs": run.done, "best_epoch": run.best_epoch, "last": run.metrics[-1]}
        print_json({**listed, "scores": dict(row.scores)})
        return
    print_line("  ".join(f"{key} {value:.4g}" for key, value in run.metrics[-1].items()))
    best = "" if run.best_epoch is None else f"best.multitude (epoch {run.best_epoch}), "
    print_line(f"{out}: {best}last.multitude and the scores of the test set\n")
    print(f"  multitudes score {out}\n  multitudes report {out}")  # noqa: T201


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="the folder of a run, or a .multitude file")],
    out: Annotated[Path, typer.Option(help="file to write: .safetensors with all members' outputs, or .csv")],
    job_name: RunJob = None,
    data: Annotated[str, typer.Option(help="dataset: test, validation, train, or an OOD set of the job")] = "test",
    model: RunModel = None,
    calibrated: Calibrated = False,
    force: Force = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Run an ensemble on a dataset, and save the outputs of all members, or a table of predictions.

    multitudes predict runs/packed --data digits --out digits.safetensors

    multitudes predict runs/packed --calibrated --out test.csv
    """
    from multitudes.shell.outputs import KINDS, check_output

    check_output(out, force, KINDS)

    from multitudes.shell.own_names import check_import, check_job, check_there
    from multitudes.shell.typed import SPLITS, check_data, check_is_no_segmentation, unknown_name

    check_there([run], "give a .multitude file, or --out of a `multitudes train`")
    if job_name is not None:
        check_job(job_name)
    if model is not None:
        check_import(model, "--model")
    check_is_no_segmentation(out, run)
    check_data(data, run, job_name)

    from multitudes.prediction.predict import predict as run_ensemble
    from multitudes.shell.jobs import find_job, first_of
    from multitudes.shell.outputs import check_table, save_prediction
    from multitudes.shell.steps import calibrator_of, changed_data, load_ensemble, told_of

    told = told_of(run, job_name, model, root)
    job = find_job(told.job, told.root)
    splits = {**{name: getattr(job, name) for name in SPLITS}, **job.ood}
    datasets = {name: dataset for name, dataset in splits.items() if dataset is not None}
    if data not in datasets:
        raise unknown_name(f"dataset --data of {job.name}", data, datasets)
    risk = "Its test set may hold examples of the training: to compare, train again"
    print_notes([f"{changed} {risk}" for changed in changed_data(run, job)])
    calibrator = calibrator_of(run, job.epoch) if calibrated else None
    ensemble = load_ensemble(run, job, told)
    if out.suffix.lower() == ".csv":
        check_table(run_ensemble(ensemble, first_of(datasets[data]), tau_output=job.tau_output))
    prediction = job.in_original_units(run_ensemble(ensemble, datasets[data], tau_output=job.tau_output))
    prediction = prediction if calibrator is None else prediction.calibrated(calibrator)
    save_prediction(prediction, out, job.classes, with_targets=data not in job.ood)
    if as_json:
        print_json({"out": str(out), "members": prediction.count, "examples": len(prediction)})
    else:
        print_line(f"{out}: {prediction}")


@app.command()
def score(
    prediction: Annotated[Path, typer.Argument(help="the folder of a run, or a .safetensors file of `multitudes predict`")],
    ood: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE: prediction of an out-of-distribution (OOD) set; may be repeated")
    ] = None,
    calibrated: Calibrated = False,
    intervals: Annotated[int, typer.Option(min=0, help="bootstrap samples for 95 % intervals; 0 for none")] = 0,
    as_json: Json = False,
) -> None:
    """Score a prediction: accuracy, likelihood, calibration, diversity, out-of-distribution detection.

    multitudes score runs/packed --calibrated

    multitudes score test.safetensors --ood digits=digits.safetensors
    """
    from multitudes.shell.own_names import check_there

    check_there([tensor_file(prediction)], "give --out of a `multitudes train` or of a `multitudes predict`")
    files = ood_files(ood or [], prediction)

    from multitudes.prediction.prediction import Prediction
    from multitudes.report.row import Row
    from multitudes.scores.score import score as compute_scores

    far = {name: Prediction.load(file) for name, file in files.items()}
    row = Row.load(row_folder(prediction)) if prediction.is_dir() else None
    if calibrated:
        scores = calibrated_scores(prediction, far, intervals)
    elif row is not None and not far and not intervals:
        scores = row.scores
    elif row is not None and row.prediction is not None:
        scores = compute_scores(row.prediction, ood={**row.ood, **far} or None, intervals=intervals)
    else:
        scores = compute_scores(Prediction.load(tensor_file(prediction)), ood=far or None, intervals=intervals)
    print(scores.json() if as_json else scores)  # noqa: T201


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, or folders that hold such folders")],
    out: Annotated[Path, typer.Option(help="page to write")] = Path("report.html"),
    job_name: Annotated[
        str | None,
        typer.Option("--job", help="job whose images and classes to show; default: the runs'", autocompletion=complete_job),
    ] = None,
    title: Annotated[str | None, typer.Option(help="title of the page")] = None,
    force: Force = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page that compares runs of `multitudes train` and `multitudes bench`.

    multitudes report runs/packed runs/deep --out report.html
    """
    from multitudes.shell.outputs import PAGES, check_output
    from multitudes.shell.own_names import check_job, check_there

    check_there(runs, "give folders of runs")
    check_output(out, force, PAGES)
    if job_name is not None:
        check_job(job_name)

    from multitudes.shell.jobs import find_job
    from multitudes.shell.steps import write_report

    page = write_report(runs, out, None if job_name is None else find_job(job_name, root), title)
    print_notes(page.notes)
    print_json({"out": str(page.path), "notes": page.notes}) if as_json else print_line(f"report: {page.path}")


@app.command()
def plan(
    factory: Annotated[
        str | None, typer.Argument(help="MODULE:FACTORY, a function that returns your network; default: that of --job")
    ] = None,
    example: Annotated[
        list[str] | None,
        typer.Option(
            help="shape of an input, batch first: 2,3,32,32. With a type, and for ids the number of different ones: "
            "8x16:int64:30000. Repeat it for several inputs; NAME=SHAPE for one that is passed by name. Default: of --job"
        ),
    ] = None,
    job_name: Annotated[
        str | None, typer.Option("--job", help=f"network and data: {JOB_NAMES}", autocompletion=complete_job)
    ] = None,
    method: Method = "packed",
    as_json: Json = False,
) -> None:
    """Show what a method would do to your network: which modules it converts, shares or refuses, and the cost.

    multitudes plan mynets:make --example 2,3,32,32 --method 'packed(alpha=2)'

    multitudes plan --job myjob:job --method 'packed(alpha=2)'

    multitudes plan mynets:bert --example 8x16:int64:30000 --example mask=8x16:bool
    """
    if job_name is None and (factory is None or not example):
        missing = "MODULE:FACTORY" if factory is None else "--example"
        raise InputError(f"{missing} is missing: type MODULE:FACTORY with --example, or --job MODULE:FUNCTION")

    from multitudes.shell.own_names import check_import, check_job
    from multitudes.shell.typed import check_methods

    check_methods([method], factory or str(job_name))
    if job_name is not None:
        check_job(job_name)
    if factory is not None:
        check_import(factory, "MODULE:FACTORY")

    from multitudes.conversion.convert import plan as make_plan
    from multitudes.shell import parse
    from multitudes.shell.jobs import find_job
    from multitudes.shell.steps import make_network

    inputs = parse.example(example) if example else None
    job = None if job_name is None else find_job(job_name)
    network = job.network() if job is not None and factory is None else make_network(str(factory))
    wanted = parse.method(method) if job is None else job.method(method)
    told: dict[str, Any] = {} if job is None else {"output": job.output, "task": job.task}
    try:
        made = make_plan(network, wanted, job.example if job is not None and inputs is None else inputs, **told)
    except InputError as error:
        reason = re.split(r"\. Give a batch|: give rows first", str(error))[0]
        if inputs is None or reason == str(error):
            raise
        raise InputError(
            f"{reason}. Type --example with a shape that it takes, batch first, as in 2,3,32,32, and 8x16:int64:30000 for ids"
        ) from error
    if as_json:
        entries = {kind: [entry.name for entry in getattr(made, kind)] for kind in ("converted", "shared", "refused")}
        print_json({"method": repr(made.method), **entries})
    else:
        print(made)  # noqa: T201
    if made.refused:
        raise typer.Exit(FAILED)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="the folder of a run, or a .multitude file")],
    out: Annotated[Path, typer.Option(help="file to write: .onnx, or .pt2 for a torch.export program")],
    outputs: Annotated[str, typer.Option(help="outputs, with commas: probs,label,entropy; default: the usual ones")] = "",
    error: Annotated[float | None, typer.Option(help="abstain so that at most this share of the answers is wrong")] = None,
    coverage: Annotated[float | None, typer.Option(help="abstain on all but this share of the examples")] = None,
    precision: Annotated[str, typer.Option(help="numbers that store weights: float32, float16, int8")] = "float32",
    prefer: Annotated[str, typer.Option(help="speed, or size: the smallest file and the least memory")] = "speed",
    aot: Annotated[bool, typer.Option("--aot", help="compile a .pt2 file for this machine")] = False,
    job_name: RunJob = None,
    model: RunModel = None,
    calibrated: Calibrated = False,
    force: Force = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Write an ensemble as one graph for a runtime, with probabilities and uncertainties as its outputs.

    The graph is compared with the ensemble before it is written. With a validation set, quantiles of the uncertainty go into
    the file, and --error or --coverage fit the threshold of the output `abstain`.

      multitudes export runs/packed --out packed.onnx

      multitudes export runs/packed --calibrated --error 0.01 --precision float16 --out small.onnx
    """
    from multitudes.shell.outputs import check_output
    from multitudes.shell.typed import split_list

    check_output(out, force, (".onnx", ".pt2"))

    from multitudes.shell.exporting import export_run

    written = export_run(
        run, out, job_name=job_name, model=model, root=root, outputs=split_list(outputs), calibrated=calibrated, error=error,
        coverage=coverage, precision=precision, prefer=prefer, aot=aot,
    )  # fmt: skip
    if as_json:
        print_json({**vars(written), "path": str(written.path)})
    else:
        print_line(str(written))


@app.command()
def census(
    only: Annotated[
        list[str] | None, typer.Option(help="networks to try, as a glob: 'vit*', 'timm/*'; may be repeated; default: all")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="methods, with commas: packed,deep; default: all", autocompletion=complete_methods)
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
    show: Annotated[bool, typer.Option("--show", help="try nothing: print the rates in --out, write its page")] = False,
    as_json: Json = False,
) -> None:
    """Convert networks of timm, transformers and torch-geometric by every method, and compare them with plain networks.

    Each pair runs in a process of its own, with limits on time and memory. Results go to --out, line by line, and a page beside
    it shows networks × methods. If the census is interrupted, run the same command again to resume it.

      multitudes census --sample

      multitudes census --libraries timm --only 'resnet*' --methods packed,deep --workers 2
    """
    from multitudes.shell.census.command import show_census, take_census
    from multitudes.shell.typed import split_list

    taken = show_census(out) if show else take_census(
        libraries=split_list(libraries), only=only or (), methods=split_list(methods), sample=sample, workers=workers,
        seconds=seconds, gigabytes=gigabytes, device=device, out=out, progress=False if as_json else None,
    )  # fmt: skip
    if as_json:
        print_json(taken.summary())
    else:
        Console().print(taken)


@app.command()
def serve(
    file: Annotated[Path, typer.Argument(help="an ONNX file, as `mt.export` writes it")],
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 for all, which asks for a token")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on")] = 8000,
    batch: Annotated[int, typer.Option(help="most rows in one run of the network")] = 32,
    wait: Annotated[float, typer.Option(help="milliseconds that a row waits for others to fill its batch")] = 2.0,
    queue: Annotated[int, typer.Option(help="most rows that wait or run; requests beyond them are answered with 503")] = 256,
    rows: Annotated[int, typer.Option(help="most rows in a request")] = 128,
    megabytes: Annotated[float, typer.Option(help="most megabytes in the body of a request")] = 16.0,
    timeout: Annotated[float, typer.Option(help="seconds that a body or an answer may take")] = 30.0,
    threads: Annotated[int, typer.Option(min=0, help="threads that compute a batch; 0 for all cores")] = 0,
    token_file: Annotated[
        Path | None, typer.Option(help="file with the bearer token that requests need; default: MULTITUDES_TOKEN, or none")
    ] = None,
    no_token: Annotated[bool, typer.Option("--no-token", help="serve other machines without a token")] = False,
    as_json: Json = False,
) -> None:
    """Serve an exported ensemble: predictions with uncertainty, batches, metrics, and a page to try it.

    multitudes serve a.onnx

    multitudes serve a.onnx --host 0.0.0.0 --port 80 --token-file token.txt
    """
    from multitudes.shell.serve.command import TOKEN, check_installed, find_token, is_local, run
    from multitudes.shell.serve.limits import Limits

    check_installed()
    limits = Limits(batch=batch, wait=wait, queue=queue, rows=rows, body=round(megabytes * 2**20), timeout=timeout)
    token = find_token(token_file)
    if token is None and not is_local(host) and not no_token:
        raise InputError(f"--host {host} lets other machines in: set {TOKEN} or --token-file, or type --no-token")

    from multitudes.shell.serve.graph import load_graph

    graph = load_graph(file, threads)
    if as_json:
        print_json({"file": str(file), "host": host, "port": port, "outputs": graph.outputs, "notes": graph.notes})
    else:
        print_notes([f"{file}: {note}" for note in graph.notes])
        print_line(f"{file}: http://{host}:{port}, to stop it press Ctrl-C")
    sys.stdout.flush()
    run(graph, host=host, port=port, limits=limits, token=token)


app.command()(reproduce)


def main(arguments: list[str] | None = None) -> None:
    """Runs the `multitudes` command. Prints errors of this package as one line; the exit code is 1, or 2 for wrong input."""
    words = sys.argv[1:] if arguments is None else arguments
    warnings.showwarning = show_warning  # the process is this command's

    def run() -> None:
        check_once(words)
        app(arguments, standalone_mode=True)

    sys.exit(exit_code(run, words))


def exit_code(run: Callable[[], Any], words: Sequence[str] = ()) -> int:
    """Runs a command, prints its error if it has one, and returns the exit code. `words` are those of the command line."""
    error = Console(stderr=True)
    try:
        run()
    except MultitudesError as wrong:
        error.print(f"[red]multitudes:[/red] {escape(in_flags(str(wrong), words))}", highlight=False, soft_wrap=True)
        return USAGE if isinstance(wrong, InputError) else FAILED
    except KeyboardInterrupt:
        error.print("stopped")
        return 130
    except SystemExit as stop:
        if stop.code == USAGE and (hint := recipe_hint(words, _options(words))):
            error.print(f"[red]multitudes:[/red] {escape(hint)}", highlight=False, soft_wrap=True)
        raise
    return 0


def in_flags(text: str, words: Sequence[str]) -> str:
    """Replaces arguments of Python in an error's text by the options of the command: `pass another out=` by `--out`.

    An argument with a value stays, as in Recipe(lr=0.1): it is part of a line of Python. So does a text that begins with such a
    line: the mistake is in a Python file.
    """
    if re.match(r"[A-Z]\w*\(", text):
        return text
    text = text.replace("mt.ensemble(..., task=", "Job(..., task=")
    for option in _options(words):
        text = re.sub(rf"(?<![\w.(]){option[2:].replace('-', '_')}=(True\b|(?![\w'\"(\[{{-]|\.\S))", option, text)
    return text


def check_once(words: Sequence[str]) -> None:
    """Refuses a command line that gives an option twice, if it takes one value: the first would be left out in silence."""
    typed = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
    for option in _parameters(words):
        if option.multiple or option.is_flag or not (given := [word for word in typed if word in option.opts])[1:]:
            continue
        raise InputError(f"{given[1]} is given {len(given)} times: it takes one value")


def _options(words: Sequence[str]) -> list[str]:
    """Returns the names of the options of the command that a command line names."""
    return [word for option in _parameters(words) for word in option.opts]


def _parameters(words: Sequence[str]) -> list[Any]:
    """Returns the options of the command that a command line names."""
    command = next((one for word in words if (one := get_command(app).commands.get(word)) is not None), None)  # type: ignore[attr-defined]
    return [] if command is None else [option for option in command.params if option.opts[0].startswith("-")]
