"""Order and account of a test run: fast stages first, the time of each before pytest's own last line."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch loads: services under test share these cores

TESTS = Path(__file__).parent

STAGES = ("unit", "contract", "property", "integration", "plugins", "e2e", "gpu")
"""Folders of this one, fast to slow."""


def stage_of(item: pytest.Item) -> str:
    """The folder of ``tests`` that a test lies in."""
    return item.path.relative_to(TESTS).parts[0]


def pytest_configure(config: pytest.Config) -> None:
    """Count by stage for the account at the end."""
    config.pluginmanager.register(Account(), "hundredfold-account")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast stages first, each in its own order. What needs a GPU is left out where there is none."""
    items.sort(key=lambda item: STAGES.index(stage_of(item)))
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def has_gpu() -> bool:
    """Whether torch sees a CUDA device; asked only when a test needs one."""
    import torch

    return torch.cuda.is_available()


class Account:
    """Seconds and tests of each stage."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Time a test with its fixtures."""
        started = time.monotonic()
        try:
            return (yield)
        finally:
            self.seconds[stage_of(item)] += time.monotonic() - started
            self.tests[stage_of(item)] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the account."""
        if not self.tests:
            return
        terminalreporter.section("stages")
        for stage in STAGES:
            if self.tests[stage]:
                line = f"{stage:<12} {self.tests[stage]:>5} tests {self.seconds[stage]:>7.1f} s"
                terminalreporter.write_line(line)
