"""The import contracts of `make lint` find what they are there to find: one planted fault each."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from support.repo import ROOT

FAULTS = {
    "shared": ("shared/hundredfold/planted_a.py", "import hundredfold_worker"),
    "services": ("services/hundredfold_tokenizer/planted_b.py", "import hundredfold_scheduler"),
    "services-plugins": ("services/hundredfold_worker/planted_c.py", "import hundredfold_gguf"),
    "plugins": ("plugins/hundredfold_gguf/planted_d.py", "import hundredfold_dense"),
    "plugins-house": ("plugins/hundredfold_dense/planted_e.py", "import hundredfold.config"),
    "scheduler": ("services/hundredfold_scheduler/planted_f.py", "def late():\n    import tokenizers"),
    "scheduler-core": (
        "services/hundredfold_scheduler/core/planted_g.py",
        "from google.protobuf import message",
    ),
    "gateway": (
        "services/hundredfold_gateway/planted_i.py",
        "from hundredfold.internal.v1 import scheduler_pb2",
    ),
    "torch": ("shared/hundredfold/planted_h.py", "from torch import nn"),
}
"""Contract to the file and the line that break it."""


def test_each_contract_can_break(tmp_path: Path):
    for room in ("shared", "services", "plugins"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file, line in FAULTS.values():
        (tmp_path / file).write_text(f'"""Planted."""\n\n{line}\n')
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    contracts = {
        section.removeprefix("importlinter:contract:"): config[section]["name"]
        for section in config.sections()
        if section.startswith("importlinter:contract:")
    }
    assert set(contracts) == set(FAULTS)

    # -S: an editable install would put the real packages before the copies.
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-S", "-c", lint, "--no-cache", "--config", ROOT / ".importlinter"]
    folders = [
        *(str(tmp_path / room) for room in ("shared", "services", "plugins")),
        sysconfig.get_path("purelib"),
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0, done.stdout + done.stderr
    missed = [name for name in contracts.values() if f"{name} BROKEN" not in " ".join(done.stdout.split())]
    assert missed == [], done.stdout
