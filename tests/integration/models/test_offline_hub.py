"""Without a hub, `models pull` is content with what the hub's cache holds, and says what it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def pull(name: str, hub_cache: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("hundredfold"), "models", "pull", name]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub_cache)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_a_pulled_repository_is_found_without_the_hub(tmp_path: Path):
    repository = tmp_path / "models--owner--model"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_bytes(b"{}")
    done = pull("owner/model", tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(snapshot) in done.stdout


def test_one_that_was_never_pulled_is_named(tmp_path: Path):
    done = pull("owner/other", tmp_path)
    assert done.returncode != 0
    assert "owner/other" in done.stderr
