"""Processes of services that tests start: each is looked after as one that ``subprocess`` has started."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.nursery import nursery


@pytest.mark.parametrize("code", [0, -signal.SIGKILL])
def test_threads_may_wait_for_the_same_process(code: int, tmp_path: Path) -> None:
    """All of them hear how it has ended, and the next one starts."""
    process = nursery("hundredfold_scheduler").start(["--help"], tmp_path / "log")
    if code:
        process.kill()
    with ThreadPoolExecutor(3) as pool:
        codes = list(pool.map(process.wait, [120] * 3))
    assert codes == [code] * 3
