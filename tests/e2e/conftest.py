"""Stacks over the real default model and over TINY."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.stack import Stack
from support.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def default_model() -> str:
    """The catalog's default model, fetched once."""
    from hundredfold.models import pull

    return str(pull("smollm2-135m").weights[0])


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The TINY checkpoint."""
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="session")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The default model in fp32, shared by a process's tests that change nothing."""
    flags = {"worker": {"dtype": "fp32", "num_threads": 2, "num_kv_blocks": 1024, "warm_up": False}}
    running = Stack(default_model, tmp_path_factory.mktemp("stack"), flags)
    running.start()
    try:
        running.wait_ready()
        yield running
    finally:
        codes = running.stop()
    assert set(codes.values()) == {0}, codes


@pytest.fixture
def tiny_stack(tiny_model: str, tmp_path: Path) -> Iterator[Stack]:
    """A stack over TINY of a test's own; the test sets flags, starts and breaks it."""
    running = Stack(tiny_model, tmp_path / "stack")
    try:
        yield running
    finally:
        running.stop()
