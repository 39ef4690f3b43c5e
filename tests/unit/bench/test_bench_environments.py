"""Environments of what is measured beside us: made once, anew when asked for otherwise, compilers told."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from hundredfold.bench.environments import EnvironmentSpec, prepare


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """The commands with their environments; none is run."""
    commands: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], env: dict[str, str], **_: Any):
        commands.append((command, env))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("hundredfold.bench.environments.environments_dir", lambda: tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / "toy").mkdir()
    return commands


def test_it_is_made_once(ran: list[tuple[list[str], dict[str, str]]]):
    spec = EnvironmentSpec("toy", ["toy==1.0"])
    interpreter = prepare(spec)
    made = len(ran)
    assert made == 2
    assert prepare(spec) == interpreter
    assert len(ran) == made


def test_other_variables_make_it_anew(ran: list[tuple[list[str], dict[str, str]]]):
    prepare(EnvironmentSpec("toy", ["toy==1.0"]))
    prepare(EnvironmentSpec("toy", ["toy==1.0"], variables={"CXXFLAGS": "-O3"}))
    assert len(ran) == 4
    command, environment = ran[-1]
    assert command[-1] == "toy==1.0"
    assert environment["CXXFLAGS"] == "-O3"


def test_what_was_made_before_there_were_variables_is_kept():
    spec = EnvironmentSpec("toy", ["b", "a"])
    assert spec.stamp.endswith("\n\n[]\n['a', 'b']\n")
