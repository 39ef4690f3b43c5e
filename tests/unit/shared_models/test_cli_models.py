"""The models command: listing what is here and what could be, and failing in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hundredfold.cli.models import command
from hundredfold.models import CATALOG


@pytest.fixture(autouse=True)
def _empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_list(tmp_path: Path):
    entry = CATALOG["smollm2-135m"]
    path = entry.path(tmp_path)
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(entry.size)
    done = CliRunner().invoke(command, ["list", "--json", "--cache", str(tmp_path)])
    listed = {model["name"]: model for model in json.loads(done.stdout)}
    assert listed["smollm2-135m"]["path"] == str(path)
    assert listed["gemma3-270m"]["path"] is None
    table = CliRunner().invoke(command, ["list", "--cache", str(tmp_path)]).stdout
    assert "98 MB" in table
    assert "Apache-2.0" in table


def test_pull_of_an_unknown_name(tmp_path: Path):
    done = CliRunner().invoke(command, ["pull", "smolm", "--cache", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: no model is called 'smolm'")
