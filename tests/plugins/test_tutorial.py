"""The tutorial of plugins/README.md, followed to the letter: every file, every command, then served."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hundredfold import Client
from support.plugin_env import CLI, PluginEnvironment
from support.repo import ROOT
from support.stack import Stack
from support.tiny_model import make_tiny_model

TUTORIAL = (ROOT / "plugins" / "README.md").read_text(encoding="utf-8").split("## Write your own plugin")[1]
FILES = re.findall(r"`([\w/.]+)`:\n\n```(?:python|toml)\n(.*?)```", TUTORIAL, re.S)
COMMANDS = [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", TUTORIAL, re.S)]
PIP_OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1"}
"""As an index would serve what is here already. (pip reads the second one the wrong way round.)"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's empty directory, after writing every file."""
    made = tmp_path_factory.mktemp("acme")
    for name, content in FILES:
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(content)
    make_tiny_model(made / "MY_MODEL")
    return made


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> PluginEnvironment:
    """The reader's environment: pip and `hundredfold` are commands there."""
    made = PluginEnvironment.make(tmp_path_factory.mktemp("tutorial") / "venv")
    commands = {"pip": f'exec "{sys.executable}" -m pip --python "{made.python}" "$@"'}
    commands["hundredfold"] = f'exec "{made.python}" -c \'{CLI}\' "$@"'
    for name, line in commands.items():
        script = made.directory / "bin" / name
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)
    return made


def run(line: str, environment: PluginEnvironment, directory: Path) -> str:
    """Run a line of the tutorial in a shell; returns what it printed."""
    path = f"{environment.directory / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=directory,
        env={**os.environ, **PIP_OFFLINE, "PATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def installed(environment: PluginEnvironment, directory: Path) -> None:
    """The first command."""
    assert COMMANDS[0][0].startswith("pip install")
    run(COMMANDS[0][0], environment, directory)


def test_the_files_are_all_there():
    names = [name for name, _ in FILES]
    kinds = ["acme/format.py", "acme/kernel.py", "acme/cache.py", "acme/attention.py"]
    assert names == ["pyproject.toml", *kinds, "test_acme.py", "convert.py"]
    assert [len(lines) for lines in COMMANDS] == [3, 3]


def test_it_is_followed_to_the_letter(directory: Path, environment: PluginEnvironment):
    _, plugins, tests = COMMANDS[0]
    listed = run(plugins, environment, directory)
    rows = [line for line in listed.splitlines() if "acme 1.0" in line]
    assert len(rows) == 4
    assert all("loaded" in row for row in rows), listed
    assert "4 passed" in run(tests, environment, directory)


def test_what_it_made_is_served(directory: Path, environment: PluginEnvironment, tmp_path: Path):
    """The `serve` of the tutorial itself wants the usual ports, so a stack is given its settings."""
    convert, serve, info = COMMANDS[1]
    run(convert, environment, directory)
    settings = dict(re.findall(r"--set worker\.(\w+)=(\S+)", serve))
    assert settings == {"kernels": "acme,torch", "attention": "acme"}
    stack = Stack(
        str(directory / "MY_MODEL_INT8"),
        tmp_path,
        {"worker": {"dtype": "fp32", **settings}},
        python=environment.python,
    )
    stack.start()
    try:
        stack.wait_ready()
        with Client(stack.address) as client:
            answer = client.generate("the quick brown", max_tokens=8, temperature=0, ignore_eos=True).result()
            worker = next(service for service in client.info() if service.service == "worker")
        shown = run(f"{info} --address {stack.address}", environment, directory)
    finally:
        codes = stack.stop()
    assert len(answer.token_ids) == 8
    chosen = [(selection.subject, selection.chosen) for selection in worker.runtime.selections]
    for wanted in ("quantization", "kernels", "attention"):
        assert (wanted, "acme") in chosen
    torch_layers = next(s for s in worker.runtime.selections if (s.subject, s.chosen) == ("kernels", "torch"))
    assert torch_layers.refused[0].reasons == ["multiplies by per-channel int8, not by DenseWeight"]
    assert "multiplies by per-channel int8, not by DenseWeight" in shown
    assert set(codes.values()) == {0}


def test_the_serve_command_takes_the_settings(directory: Path, environment: PluginEnvironment):
    """The line itself, with a model that is not there: it gets as far as looking for it."""
    line = COMMANDS[1][1].replace("MY_MODEL_INT8", "NO_SUCH_MODEL")
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=directory,
        env={**os.environ, "PATH": f"{environment.directory / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "NO_SUCH_MODEL" in done.stdout + done.stderr
