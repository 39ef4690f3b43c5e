"""The committed stubs are those of the protos, and the public protos stay compatible with their baseline."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.repo import GENERATED, ROOT

BUF = Path(sys.executable).with_name("buf")


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=280)


def breaking(proto: Path) -> subprocess.CompletedProcess[str]:
    return run(BUF, "breaking", proto, "--against", ROOT / "proto" / "baseline.binpb")


def test_committed_stubs_equal_regenerated_ones(tmp_path: Path):
    done = run("make", "proto", f"PROTO_OUT={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    made = {p.relative_to(tmp_path): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    shared = ROOT / "shared"
    committed = {
        p.relative_to(shared): p.read_text() for p in shared.rglob("*") if p.name.endswith(GENERATED)
    }
    assert sorted(made) == sorted(committed)
    assert [str(name) for name in made if made[name] != committed[name]] == []


def test_public_protos_do_not_break_their_baseline():
    done = breaking(ROOT / "proto")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("optional float temperature = 3;", "optional float temperature = 103;"),
        ("optional uint64 seed = 7;", "optional uint32 seed = 7;"),
        ("optional float min_p = 6;", ""),
        ("rpc Abort(AbortRequest) returns (AbortResponse);", ""),
    ],
)
def test_a_breaking_change_is_refused(tmp_path: Path, old: str, new: str):
    proto = Path(shutil.copytree(ROOT / "proto", tmp_path / "proto"))
    file = proto / "hundredfold" / "v1" / "generation.proto"
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    assert breaking(proto).returncode != 0
