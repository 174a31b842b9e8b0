"""When training ends: patience, callbacks, and more epochs for a run that is resumed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from training.small import TRAIN, VAL, made, same

import multitudes as mt
from multitudes.terminal import curve
from multitudes.training.fit import Run


def first_stop(scores: list[float], patience: int) -> int | None:
    """The epoch after which no score was lower for `patience` epochs, by hand."""
    for epoch in range(1, len(scores) + 1):
        best = min(range(epoch), key=lambda place: (scores[place], place)) + 1
        if epoch - best >= patience:
            return epoch
    return None


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_patience_ends_where_it_would_by_hand(patience: int) -> None:
    """With a large learning rate the NLL goes up and down; the weights are those of the full run at that epoch."""
    settings: Any = {"epochs": 12, "lr": 2.0, "batch": 50}
    states: list[dict[str, torch.Tensor]] = []

    def keep(run: Run) -> None:
        states.append({name: value.clone() for name, value in run.ensemble.state_dict().items()})

    whole = mt.fit(made(), TRAIN, mt.Recipe(**settings), val=VAL, callbacks=[keep])
    stop = first_stop([line["val_nll"] for line in whole.metrics], patience)
    assert stop is not None and stop < 12
    ens = made()
    run = mt.fit(ens, TRAIN, mt.Recipe(**settings, patience=patience), val=VAL)
    assert run.done == len(run.metrics) == stop
    assert run.stopped.startswith(f"no better nll since epoch {run.best_epoch}")
    assert all(torch.equal(value, states[stop - 1][name]) for name, value in ens.state_dict().items())


def test_a_stopped_run_stays_stopped_and_goes_on_with_more_patience(tmp_path: Path) -> None:
    settings: Any = {"epochs": 12, "lr": 2.0, "batch": 50}
    first = mt.fit(made(), TRAIN, mt.Recipe(**settings, patience=1), val=VAL, out=tmp_path)
    assert first.done < 12
    again = mt.fit(made(), TRAIN, mt.Recipe(**settings, patience=1), val=VAL, out=tmp_path, resume=True)
    assert again.done == first.done and again.stopped == first.stopped
    longer, whole = made(), made()
    mt.fit(longer, TRAIN, mt.Recipe(**settings, patience=12), val=VAL, out=tmp_path, resume=True)
    mt.fit(whole, TRAIN, mt.Recipe(**settings), val=VAL)
    assert same(longer, whole)
    assert "stopped after epoch" in (tmp_path / "log.txt").read_text()


def test_patience_needs_held_out_data() -> None:
    with pytest.raises(mt.InputError, match=r"patience=2\) needs held-out data .*val="):
        mt.fit(made(), TRAIN, mt.Recipe(epochs=3, patience=2))


@pytest.mark.parametrize("settings", [{}, {"schedule": "multistep", "milestones": (2,)}, {"ema": 0.9}])
def test_more_epochs_equal_one_long_run(settings: Any, tmp_path: Path) -> None:
    whole, resumed = made(), made()
    mt.fit(whole, TRAIN, mt.Recipe(epochs=5, batch=50, **settings), val=VAL)
    mt.fit(made(), TRAIN, mt.Recipe(epochs=2, batch=50, **settings), val=VAL, out=tmp_path)
    run = mt.fit(resumed, TRAIN, mt.Recipe(epochs=5, batch=50, **settings), val=VAL, out=tmp_path, resume=True)
    assert same(whole, resumed) and run.done == 5
    assert json.loads((tmp_path / "config.json").read_text())["recipe"]["epochs"] == 5
    assert same(mt.load(tmp_path / "last.multitude", made().base.to_empty(device="cpu")), whole)


def test_a_schedule_over_all_epochs_jumps_and_says_so(tmp_path: Path) -> None:
    mt.fit(made(), TRAIN, mt.Recipe(epochs=2, batch=50, schedule="cosine"), out=tmp_path)
    with pytest.warns(UserWarning, match="cosine schedule over 2 epochs .*over 4: it jumps"):
        mt.fit(made(), TRAIN, mt.Recipe(epochs=4, batch=50, schedule="cosine"), out=tmp_path, resume=True)


def test_fewer_epochs_than_are_done_are_refused(tmp_path: Path) -> None:
    mt.fit(made(), TRAIN, mt.Recipe(epochs=3, batch=50), out=tmp_path)
    with pytest.raises(mt.FileError, match=r"has done 3 epochs already: resume with Recipe\(epochs=3\) or more"):
        mt.fit(made(), TRAIN, mt.Recipe(epochs=2, batch=50), out=tmp_path, resume=True)
    assert json.loads((tmp_path / "config.json").read_text())["recipe"]["epochs"] == 3


def test_callbacks_see_each_epoch_and_may_end_the_training() -> None:
    seen: list[tuple[int, float]] = []

    def look(run: Run) -> bool:
        seen.append((run.done, run.metrics[-1]["val_nll"]))
        return run.done == 2

    run = mt.fit(made(), TRAIN, mt.Recipe(epochs=5, batch=50), val=VAL, callbacks=look)
    assert [epoch for epoch, _ in seen] == [1, 2]
    assert [score for _, score in seen] == [line["val_nll"] for line in run.metrics]
    assert run.stopped == "a callback returned True" and run.done == 2


def test_a_callback_that_ends_the_last_epoch_stops_nothing() -> None:
    run = mt.fit(made(), TRAIN, mt.Recipe(epochs=2, batch=50), callbacks=lambda run: run.done == 2)
    assert run.done == 2 and not run.stopped


def test_callbacks_change_nothing_and_see_the_validated_weights() -> None:
    """With ema= these are the averages; what a callback draws does not move the training."""
    recipe = mt.Recipe(epochs=2, batch=50, ema=0.9)
    quiet, loud, outputs = made(), made(), []

    def look(run: Run) -> None:
        torch.rand(7)
        outputs.append(mt.predict(run.ensemble, VAL).members["logits"])

    mt.fit(quiet, TRAIN, recipe)
    mt.fit(loud, TRAIN, recipe, callbacks=[look])
    assert same(quiet, loud)
    torch.testing.assert_close(outputs[-1], mt.predict(quiet, VAL).members["logits"])


def test_callbacks_must_be_functions() -> None:
    with pytest.raises(mt.InputError, match="must be functions"):
        mt.fit(made(), TRAIN, mt.Recipe(epochs=1), callbacks=["early"])  # type: ignore[list-item]


def test_the_progress_shows_curves_of_the_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    @contextlib.contextmanager
    def watched(*_: Any) -> Iterator[Any]:
        yield lambda count=1, **values: shown.append(values)

    monkeypatch.setattr("multitudes.training.fit.bar", watched)
    run = mt.fit(made(), TRAIN, mt.Recipe(epochs=4, batch=50), val=VAL)
    last = next(values for values in reversed(shown) if values)  # in the last epoch: those before it
    scores = {name: [line[f"val_{name}"] for line in run.metrics[:3]] for name in ("nll", "accuracy")}
    assert last["below"] == "  ".join(f"{name} {values[-1]:.4f} {curve(values)}" for name, values in scores.items())


def test_curves_are_drawn_by_height() -> None:
    assert curve([0.0, 7.0, 3.0]) == "▁█▄"
    assert curve([1.0, 1.0]) == "▁▁"
    assert curve([float("nan"), 1.0, 2.0, float("inf")]) == " ▁█ "
    assert curve([]) == ""
    assert len(curve(list(range(100)))) == 24
