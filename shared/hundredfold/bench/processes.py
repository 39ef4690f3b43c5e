"""The client processes of a run, from the parent's side: spawned, prepared, released together, gathered.

They are spawned, for gRPC does not survive a fork. Requests of a closed loop are numbered by a counter that
all children share, so none idles while another still has work; those of an open loop are dealt out in turn.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import Synchronized
from typing import Self

from hundredfold.bench.child import Answer, Measure, Warmup, run_child
from hundredfold.bench.client import ClientSetup

START_DELAY_S = 0.1
"""How far ahead the common start lies, so that every child has heard of it."""


class ClientProcessError(Exception):
    """A client process failed; the message says why."""


class ClientProcesses:
    """The children of one run; leaving the context ends them."""

    def __init__(self, setup: ClientSetup) -> None:
        """Start none yet."""
        self._setup = setup
        self._context = multiprocessing.get_context("spawn")
        self._sent: Synchronized[int] = self._context.Value("q", 0)
        self._children: list[tuple[SpawnProcess, Connection]] = []

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipes, at which children end, and terminate those that are busy."""
        for _process, pipe in self._children:
            pipe.close()
        for process, _pipe in self._children:
            process.join(0.5)
            if process.is_alive():
                process.terminate()
                process.join(5)

    def __len__(self) -> int:
        """Return how many run."""
        return len(self._children)

    def start(self, count: int) -> None:
        """Start children until there are `count`, each connected. Raises ClientProcessError."""
        new: list[tuple[SpawnProcess, Connection]] = []
        for _ in range(len(self._children), count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=run_child, args=(theirs, self._setup, self._sent), daemon=True
            )
            process.start()
            theirs.close()
            new.append((process, ours))
        self._children += new
        for child in new:
            _receive(child)

    def warmup(self, order: Warmup) -> Answer:
        """Let the first child warm the server up."""
        self._children[0][1].send(order)
        return _receive(self._children[0])

    def measure(
        self,
        num_requests: int,
        output_len: int,
        *,
        concurrency: int | None,
        arrivals: Sequence[float] | None,
        tick: Callable[[int], None],
    ) -> list[Answer]:
        """Run the measurement on all children; `tick` hears twice a second how many requests were sent."""
        total = len(self._children)
        for rank, (_process, pipe) in enumerate(self._children):
            share = None if concurrency is None else concurrency // total + (rank < concurrency % total)
            due = None if arrivals is None else list(enumerate(arrivals))[rank::total]
            pipe.send(Measure(num_requests, output_len, share, due))
        for child in self._children:
            _receive(child)
        start = time.monotonic() + START_DELAY_S
        for _process, pipe in self._children:
            pipe.send(start)
        pending = dict(enumerate(self._children))
        answers: list[Answer] = []
        while pending:
            multiprocessing.connection.wait([pipe for _process, pipe in pending.values()], timeout=0.5)
            for rank, child in list(pending.items()):
                if child[1].poll():
                    answers.append(_receive(child))
                    del pending[rank]
            tick(min(self._sent.value, num_requests))
        return answers


def _receive(child: tuple[SpawnProcess, Connection]) -> Answer:
    process, pipe = child
    try:
        answer = pipe.recv()
    except EOFError:
        process.join(5)
        raise ClientProcessError(f"a client process ended with exit code {process.exitcode}") from None
    if not isinstance(answer, Answer):
        raise ClientProcessError(f"a client process answered with a {type(answer).__name__}")
    if answer.failure is not None:
        raise ClientProcessError(answer.failure)
    return answer
