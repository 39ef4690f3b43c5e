"""Engines over the toy model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support.step_driver import StepDriver
from support.toy_driver import toy_driver

MakeDriver = Callable[..., StepDriver]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_driver() -> MakeDriver:
    """A driver over a fresh engine; keywords are limits, ``model`` and ``chunk``."""
    return toy_driver
