"""The command `multitudes reproduce`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from multitudes.errors import InputError
from multitudes.shell.commands import app
from multitudes.shell.reproduce.catalog import ITEMS
from multitudes.shell.reproduce.command import check, list_table, listed

RUNNER = CliRunner()


def test_all_items_are_listed() -> None:
    shown = RUNNER.invoke(app, ["reproduce", "--list", "--json"])
    listed = json.loads(shown.stdout)
    assert [one["name"] for one in listed] == list(ITEMS)
    assert all(one["scales"] and one["protocol"] and set(one["seeds"]) == set(one["differs"]) for one in listed)


def test_the_list_is_readable_in_a_terminal_of_80_columns() -> None:
    table = list_table(listed(Path("nowhere")))
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) < 3.5 * len(ITEMS) and not any("…" in line for line in lines)


def test_an_item_writes_rows_and_figures_and_is_not_computed_twice(tmp_path: Path) -> None:
    words = ["reproduce", "masksembles/fig-3", "--out", str(tmp_path)]
    first = RUNNER.invoke(app, words)
    assert first.exit_code == 0 and "1 / (2 S − 1)" in first.stdout
    told = " ".join(first.output.split())
    assert "what the paper does: Masks with M ones" in told and "seeds at smoke: 0" in told and "what differs" in told
    folder = tmp_path / "masksembles" / "fig-3" / "smoke"
    files = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert folder / "masks.png" in files and folder / "n-4-s-2.json" in files
    RUNNER.invoke(app, words)
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == files


def test_the_rows_of_an_interrupted_command_are_computed_again(tmp_path: Path) -> None:
    words = ["reproduce", "masksembles/fig-3", "--seeds", "3", "--out", str(tmp_path)]
    RUNNER.invoke(app, words)
    folder = tmp_path / "masksembles" / "fig-3" / "smoke"
    files = sorted(folder.iterdir())
    assert folder / "masks.png" in files, "figures are drawn with any seed"
    (folder / "n-4-s-2.json").unlink()  # as if the command had been killed between two rows
    RUNNER.invoke(app, words)
    assert sorted(folder.iterdir()) == files


def test_a_damaged_row_is_answered_before_the_work_and_replaced_by_force(tmp_path: Path) -> None:
    words = ["reproduce", "masksembles/fig-3", "--out", str(tmp_path)]
    RUNNER.invoke(app, words)
    file = tmp_path / "masksembles" / "fig-3" / "smoke" / "n-4-s-2.json"
    whole = file.read_text()
    file.write_text("{")
    refused = RUNNER.invoke(app, words)
    assert refused.exit_code != 0 and "--force" in str(refused.exception) and file.read_text() == "{"
    assert RUNNER.invoke(app, [*words, "--force"]).exit_code == 0 and file.read_text() == whole


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("packed/table-7", "smoke", "", ()), "did you mean 'packed/table-"),
        (("packed/table-1", "smal", "", ()), "did you mean 'small'"),
        (("mimo/table-4", "small", "", ()), "mimo/table-4 has no --scale small: it has full"),
        (("packed/table-1", "small", "a", ()), "not whole numbers"),
        (("packed/table-1", "small", "", ("swag",)), "no row of packed/table-1 at small has such a label"),
        (("packed/table-1", "small", "", ("r50",)), "at small has such a label. There are Single Model, C10, R18"),
        (("masksembles/fig-3", "small", "", ("single",)), "leave out --only"),
        (("mimo/table-3", "small", "", ("wide",)), "computed at once at small: leave out --only"),
    ],
)
def test_mistakes_are_answered(words: tuple[str, str, str, tuple[str, ...]], answer: str) -> None:
    with pytest.raises(InputError, match=answer):
        check(*words)


def test_rows_are_chosen_by_their_labels() -> None:
    wanted = check("packed/table-1", "small", "0-2", ("packed", "deep ensembles, c10"))
    assert wanted.seeds == (0, 1, 2)
    chosen = wanted.item.at("small").rows
    assert any("Packed" in label for label in chosen) and any("Deep" in label for label in chosen)
    assert all("Packed" in label or label.startswith("Deep Ensembles, C10") for label in chosen)


def test_a_whole_label_names_its_row_alone() -> None:
    assert check("mimo/fig-6", "small", "", ("ρ = 0",)).item.at("small").rows == ("ρ = 0",)


def test_a_refusal_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom multitudes.shell.commands import app\n"
        "try:\n    app(['reproduce', 'packed/tabel-1'], standalone_mode=False)\nexcept Exception as e:\n    print(e)\n"
        "print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "did you mean 'packed/table-1'" in shown and shown.strip().endswith("False")
