"""Ensembles in folders of the Hugging Face Hub. No test uses the network."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.files import hub


def made() -> tuple[nn.Module, torch.Tensor, mt.Ensemble]:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 4)
    return model, x, mt.ensemble(model, mt.Packed(members=2, alpha=2), x, seed=0)


def test_a_folder_loads_again(tmp_path: Path) -> None:
    model, x, ens = made()
    folder = hub.save_pretrained(ens, tmp_path / "net")
    assert (folder / hub.FILE).is_file()
    assert "multitudes" in (folder / "README.md").read_text()
    again = hub.from_pretrained(folder, model)
    torch.testing.assert_close(again(x), ens(x))


def test_what_would_be_uploaded_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upload itself is huggingface_hub's; its folder loads again."""
    from huggingface_hub import HfApi, hub_mixin

    model, x, ens = made()
    seen: dict[str, object] = {}

    def create(self: HfApi, **options: object) -> object:
        seen["repo"] = options["repo_id"]
        return type("Repo", (), {"repo_id": options["repo_id"]})()

    def upload(self: HfApi, **options: object) -> str:
        again = hub.from_pretrained(str(options["folder_path"]), model)
        torch.testing.assert_close(again(x), ens(x))
        return "uploaded"

    monkeypatch.setattr(hub_mixin.HfApi, "create_repo", create)
    monkeypatch.setattr(hub_mixin.HfApi, "upload_folder", upload)
    assert hub.push_to_hub(ens, "me/net") == "uploaded"
    assert seen == {"repo": "me/net"}


def test_a_network_of_ours_needs_no_model(tmp_path: Path) -> None:
    ens = mt.ensemble(mt.models.MLP(4, (8,), 3), mt.Deep(members=2), torch.randn(2, 4), seed=0)
    again = hub.from_pretrained(hub.save_pretrained(ens, tmp_path))
    assert again.members == 2


def test_bad_sources_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, ens = made()
    with pytest.raises(mt.InputError, match="comes first"):
        hub.from_pretrained(model)  # type: ignore[arg-type]
    with pytest.raises(mt.FileError, match=r"there is no file .*ensemble\.multitude"):
        hub.from_pretrained(tmp_path, model)
    with pytest.raises(mt.FileError, match="is no folder"):
        hub.from_pretrained("nobody/nothing", model, local_files_only=True, cache_dir=tmp_path)
    with pytest.raises(mt.InputError, match="takes an ensemble"):
        hub.save_pretrained(model, tmp_path)  # type: ignore[arg-type]
    hub.save_pretrained(ens, tmp_path)
    (tmp_path / hub.FILE).write_bytes(json.dumps({}).encode())
    with pytest.raises(mt.FileError, match="not a whole safetensors file"):
        hub.from_pretrained(tmp_path, model)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub._on_hub.cache_clear()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(mt.InputError, match=r"multitudes\[hub\]"):
        hub.from_pretrained(tmp_path)
    hub._on_hub.cache_clear()
