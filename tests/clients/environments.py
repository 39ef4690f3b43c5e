"""Environments of the foreign clients, below build/clients: made again when what they hold changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.node import BIN, environment, npm_ci
from support.repo import ROOT

HERE = Path(__file__).parent
BUILD = ROOT / "build" / "clients"

_DEBIAN = ("g++", "libgrpc++-dev", "libprotobuf-dev", "pkg-config", "protobuf-compiler-grpc")


class Failed(Exception):
    """A client did not do what it should; the message has its last words."""


def run(
    command: Sequence[str | Path],
    *,
    timeout_s: float,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
) -> str:
    """A command's output. Raises ``Failed``."""
    variables = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} took more than {error.timeout:g} s") from None
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def python(name: str, *packages: str) -> Path:
    """The interpreter of an environment that holds these packages, as constraints/NAME.txt has them."""
    constraints = HERE / "constraints" / f"{name}.txt"
    directory = BUILD / name
    interpreter, stamp = directory / "bin" / "python", directory / "installed-for.txt"
    wanted = f"{sys.version}\n{packages}\n{constraints.read_text()}"
    if not stamp.exists() or stamp.read_text() != wanted:
        run([sys.executable, "-m", "venv", "--clear", directory], timeout_s=120)
        install = [
            interpreter,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            "--disable-pip-version-check",
        ]
        run([*install, "-c", constraints, *packages], timeout_s=900)
        stamp.write_text(wanted)
    return interpreter


def node() -> tuple[Path, Path]:
    """Node, and a directory whose scripts find the packages of node/package.json."""
    directory = BUILD / "node"
    try:
        npm_ci(HERE / "node", directory)
    except RuntimeError as error:
        raise Failed(str(error)) from None
    for script in HERE.glob("*.mjs"):
        shutil.copy(script, directory)  # modules are looked for beside the script
    return BIN / "node", directory


def node_variables() -> Mapping[str, str]:
    """For a process that finds this Node first."""
    return environment()


def cpp() -> Path:
    """The C++ client, built with Debian's gRPC, which is installed where it is missing."""
    directory = BUILD / "cpp"
    source, contract = HERE / "cpp" / "client.cc", ROOT / "proto" / "hundredfold" / "v1" / "generation.proto"
    program, stamp = directory / "client", directory / "built-from.txt"
    wanted = source.read_text() + contract.read_text()
    if program.exists() and stamp.exists() and stamp.read_text() == wanted:
        return program
    debian(*_DEBIAN)
    directory.mkdir(parents=True, exist_ok=True)
    plugin = shutil.which("grpc_cpp_plugin")
    stubs = [f"--cpp_out={directory}", f"--grpc_out={directory}", f"--plugin=protoc-gen-grpc={plugin}"]
    run(["protoc", "-I", ROOT / "proto", *stubs, contract.relative_to(ROOT / "proto")], timeout_s=60)
    made = [directory / "hundredfold" / "v1" / f"generation.{part}.cc" for part in ("pb", "grpc.pb")]
    libraries = run(["pkg-config", "--libs", "grpc++", "protobuf"], timeout_s=60).split()
    compiler = ["g++", "-std=c++17", "-O0", "-I", directory]
    run([*compiler, source, *made, "-o", program, *libraries], timeout_s=600)
    stamp.write_text(wanted)
    return program


def debian(*packages: str) -> None:
    """Install those of these packages that are missing. Raises ``Failed``."""
    missing = [name for name in packages if not _installed(name)]
    if missing:
        run(["apt-get", "update", "-qq"], timeout_s=300)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        run(install, timeout_s=600, env={"DEBIAN_FRONTEND": "noninteractive"})


def _installed(package: str) -> bool:
    command = ["dpkg-query", "-W", "-f", "${Status}", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout == "install ok installed"
