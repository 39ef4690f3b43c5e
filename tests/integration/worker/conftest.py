"""Workers over the toy model, in process but over real gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import torch

from support.tiny_model import make_tiny_model
from support.toy_model import ToyModel
from support.worker_process import RunningWorker

StartWorker = Callable[..., RunningWorker]


@pytest.fixture
def start_worker() -> Iterator[StartWorker]:
    """Start a worker; it stops with the test. Keywords are settings."""
    torch.set_num_threads(1)
    with ExitStack() as stack:

        def start(model: ToyModel | None = None, **settings: object) -> RunningWorker:
            return stack.enter_context(RunningWorker(model or ToyModel(), **settings))

        yield start


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The TINY checkpoint: real architecture, random weights."""
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))
