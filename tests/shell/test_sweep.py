"""Sweeps: trials in this process and over several, and trials that fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import multitudes as mt
from multitudes.report.row import Row
from multitudes.scores.scores import Scores
from multitudes.shell import sweep
from multitudes.shell.sweep import check_folders, run_trials, trials
from multitudes.shell.trial import Trial

MODULE = """
import os, signal, torch
from pathlib import Path
import multitudes as mt
from multitudes.data import Data
from multitudes.shell.jobs import Job
from multitudes.models import MLP

g = torch.Generator().manual_seed(0)
x = torch.randn(96, 6, generator=g)
y = (x @ torch.randn(6, 3, generator=g)).argmax(1)

def network():
    mark = Path("kill-one")
    if mark.exists():  # the first process that comes by dies of it
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return MLP(6, (16,), 3)

def small():
    return Job(name="small", network=network, train=Data(x[:64], y[:64]), test=Data(x[64:], y[64:]),
               recipe=mt.Recipe(epochs=2, batch=16, lr=0.05))
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "jobs_of_bench.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(__import__("sys").path))
    return "jobs_of_bench:small"


def listed(job: str, out: str = "out") -> list[Trial]:
    return trials(job, ["single", "deep(members=2)"], (0, 1), "2 epochs", out)


ROW = Row(name="single", method="Single()", scores=Scores({"accuracy": 0.5}, task="classes"))


def numbers(rows: list[Row]) -> list[tuple[str, int, dict[str, float]]]:
    return [(row.name, row.seed, dict(row.scores)) for row in rows]


def test_methods_and_seeds(job: str) -> None:
    found = listed(job)
    assert [(t.name, t.seed, str(t.folder)) for t in found] == [
        ("single", 0, "out/single-0"), ("deep(members=2)", 0, "out/deep_members_2-0"), ("single", 1, "out/single-1"),
        ("deep(members=2)", 1, "out/deep_members_2-1"),
    ]  # fmt: skip
    assert found[1].method == mt.Deep(members=2)
    assert (
        found[1].command == f"multitudes bench --job {job} --methods 'deep(members=2)' --seeds 0 --budget '2 epochs' --out out"
    )
    assert trials(job, ["emp(prior='none')"], root="a b")[0].command.endswith(
        "--budget '2 epochs' --out runs/bench --root 'a b'"
    )
    assert {trial.name for trial in trials(job)} == {kind.__name__.lower() for kind in mt.Method.all()} - {
        "laplace",
        "snapshot",
        "swag",
    }


def test_trials_of_other_settings_are_seen_before_any_training(job: str) -> None:
    """They are refused, all at once, and --force removes them; files of others stay."""
    sweep = listed(job)
    scores = Scores({"accuracy": 0.8}, task="classes")
    for trial, budget in zip(sweep[:2], ("2 epochs", "3 epochs"), strict=True):
        settings = {"job": trial.job, "budget": budget}
        Row(name=trial.name, method=repr(trial.method), scores=scores, settings=settings).save(trial.folder)
    (sweep[1].folder / "mine.txt").touch()
    with pytest.raises(mt.FileError, match=r"deep_members_2-0 holds another trial: budget was 3 epochs and is 2.*--force"):
        check_folders(sweep, Path("out/report.html"), force=False)
    check_folders(sweep, Path("out/report.html"), force=True)
    assert [trial.done() for trial in sweep[:2]] == [True, False]
    assert (sweep[1].folder / "mine.txt").exists()


def test_a_page_of_others_stays(job: str) -> None:
    Path("out").mkdir()
    Path("out/report.html").touch()
    with pytest.raises(mt.FileError, match=r"report.html is not of this sweep.*--force"):
        check_folders(listed(job), Path("out/report.html"), force=False)
    check_folders(listed(job), Path("out/report.html"), force=True)


def test_only_what_may_pass_is_worth_a_second_try(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that the same command would meet again does not ask for it."""
    for error, again in ((mt.FileError("other"), False), (mt.RunError("nan"), True), (OSError("disk"), True)):

        def fail(trial: Trial, error: Exception = error) -> Row:
            raise error

        monkeypatch.setattr(Trial, "run", fail)
        with pytest.raises(mt.RunError) as failed:
            run_trials(listed(job))
        assert ("run the command again" in str(failed.value)) == again


@pytest.mark.parametrize(
    ("options", "nouns"),
    [
        ({"methods": ["paked"]}, "'paked'.*'packed'"), ({"seeds": ()}, "--seeds"), ({"seeds": (1, 1)}, "--seeds"),
        ({"methods": ["deep", "Deep"]}, "--methods"), ({"budget": "much"}, "--budget"),
        ({"job_name": "fasion"}, "'fasion'.*'fashion'"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(job: str, options: dict[str, object], nouns: str) -> None:
    with pytest.raises(mt.InputError, match=nouns):
        trials(**{"job_name": job, **options})


@pytest.mark.slow
def test_one_by_one_and_over_processes_are_the_same(job: str) -> None:
    ended: list[str] = []
    serial = run_trials(listed(job), on_end=lambda trial, outcome: ended.append(trial.name))
    assert ended == ["single", "deep(members=2)"] * 2
    Path("kill-one").touch()
    assert numbers(run_trials(listed(job, "other"), workers=2)) == numbers(serial)
    assert not Path("kill-one").exists()
    assert numbers(run_trials(listed(job))) == numbers(serial)


def test_a_failed_trial_is_named_and_the_others_run(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def failing(self: Trial) -> Row:
        if (self.name, self.seed) == ("single", 1):
            raise KeyError("no luck")
        return ROW

    monkeypatch.setattr(Trial, "run", failing)
    with pytest.raises(mt.RunError, match=r"1 of 4 trials.*\nsingle \(seed 1\): .*no luck"):
        run_trials(listed(job), on_end=lambda trial, outcome: ended.append(trial.name))
    assert ended == ["single", "deep(members=2)", "single", "deep(members=2)"]


@pytest.mark.parametrize(("error", "times"), [(OSError("busy"), 3), (mt.RunError("never"), 1)])
def test_other_errors_are_retried_and_ours_are_not(
    job: str, error: Exception, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    def failing(self: Trial) -> Row:
        attempts.append(self.name)
        if len(attempts) < 3:
            raise error
        return ROW

    monkeypatch.setattr(Trial, "run", failing)
    one = listed(job)[:1]
    if times == 3:
        assert run_trials(one) == [ROW]
    else:
        with pytest.raises(mt.RunError, match="never"):
            run_trials(one)
    assert len(attempts) == times


def test_wrong_workers_and_missing_ray_are_refused(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for workers in (0, True, 1.5):
        with pytest.raises(mt.InputError, match="--workers"):
            run_trials(listed(job), workers=workers)  # type: ignore[arg-type]

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(sweep, "import_module", missing)
    with pytest.raises(mt.InputError, match=r"multitudes\[ray\]"):
        run_trials(listed(job), ray=True)


@pytest.mark.slow
def test_on_ray_with_a_worker_killed(job: str) -> None:
    """Scores are those of a sweep in one process."""
    pytest.importorskip("ray")
    serial = run_trials(listed(job))
    Path("kill-one").touch()
    assert numbers(run_trials(listed(job, "ray"), workers=2, ray=True)) == numbers(serial)
    assert not Path("kill-one").exists()
