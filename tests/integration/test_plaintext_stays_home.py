"""Without TLS a service listens where only this machine reaches it, unless it is told otherwise in words."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("service", "listen"),
    [("tokenizer", "0.0.0.0:50999"), ("scheduler", "[::]:50999"), ("worker", "server.example:50999")],
)
def test_a_reachable_address_is_refused(service: str, listen: str):
    command = [sys.executable, "-m", f"hundredfold_{service}", "--model", "tiny", "--listen", listen]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert listen in done.stderr
    assert "insecure" in done.stderr
