"""The clients of the README, as they stand there, against the running stack."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.node import npm_ci, run_node
from support.repo import ROOT
from support.stack import Stack

MAX_LINES = 20


def snippet(language: str, marker: str) -> str:
    """The fenced block of ``language`` in the README that holds ``marker``."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [code for code in re.findall(rf"```{language}\n(.*?)```", readme, re.S) if marker in code]
    assert len(blocks) == 1, f"the README has {len(blocks)} {language} blocks with {marker!r}"
    return blocks[0]


def run_python(code: str, directory: Path, address: str) -> subprocess.CompletedProcess[str]:
    script = directory / "client.py"
    script.write_text(code)
    command = [sys.executable, script, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=directory)


@pytest.fixture(scope="module")
def node_modules() -> Path:
    return npm_ci(ROOT / "tests" / "e2e" / "node", ROOT / "build" / "node")


def test_the_python_and_the_node_client_print_the_same_answer(
    stack: Stack, tmp_path: Path, node_modules: Path
):
    python = run_python(snippet("python", "from hundredfold import Client"), tmp_path, stack.address)
    assert python.returncode == 0, python.stderr
    script = tmp_path / "client.js"
    script.write_text(snippet("js", "@grpc/grpc-js"))
    node = run_node([script, stack.address], node_modules, cwd=ROOT)
    assert node.returncode == 0, node.stderr
    answer, last = python.stdout.rstrip("\n").rsplit("\n", 1)
    assert answer.strip()
    assert re.fullmatch(r"stop|length", last), last
    assert node.stdout.rstrip("\n") == f"{answer}\nFINISH_REASON_{last.upper()}"


def test_the_client_from_bare_stubs_answers(stack: Stack, tmp_path: Path):
    done = run_python(snippet("python", "generation_pb2_grpc"), tmp_path, stack.address)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("language", "marker"), [("python", "import Client"), ("python", "_pb2_grpc"), ("js", "grpc-js")]
)
def test_a_client_is_no_longer_than_20_lines(language: str, marker: str):
    assert len(snippet(language, marker).strip().splitlines()) <= MAX_LINES


def test_the_node_client_tells_of_a_closed_door(tmp_path: Path, node_modules: Path):
    script = tmp_path / "client.js"
    script.write_text(snippet("js", "@grpc/grpc-js"))
    with socket.socket() as taken:  # bound and not listening: nobody else can open it meanwhile
        taken.bind(("127.0.0.1", 0))
        done = run_node([script, f"127.0.0.1:{taken.getsockname()[1]}"], node_modules, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.startswith("14 ")
