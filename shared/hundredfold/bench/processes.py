"""The client processes of a run: spawned (gRPC does not survive a fork), released together, gathered.

The parent sends each child `Warmup` and `Measure` over a pipe and gets one answer to each. Requests of a
closed loop are numbered by a counter that all children share, so none idles while another still has work;
requests of an open loop are dealt out in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import multiprocessing.connection
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import Synchronized
from typing import Self

import grpc

from hundredfold.bench.client import ClientLoad, ClientSetup, LoadClient, measure_load
from hundredfold.bench.report import RequestRecord
from hundredfold.rpc import run_loop

CONNECT_TIMEOUT_S = 10.0
START_DELAY_S = 0.1
"""How far ahead the common start lies, so that every child has heard of it."""


class ClientProcessError(Exception):
    """A client process failed; the message says why."""


@dataclass(frozen=True, slots=True)
class Warmup:
    """Send these many requests, at most so many at a time."""

    count: int
    concurrency: int
    output_len: int


@dataclass(frozen=True, slots=True)
class Measure:
    """Run a child's part of the measurement from a moment on the monotonic clock."""

    start: float
    num_requests: int
    """Of the whole run: where the shared counter ends."""
    output_len: int
    concurrency: int | None
    """Closed loop: how many requests this child keeps in flight."""
    due: Sequence[tuple[int, float]] | None
    """Open loop: this child's requests, each with its moment after the start in seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child did in one phase, or why it could not."""

    records: Sequence[RequestRecord] = ()
    load: ClientLoad | None = None
    failure: str | None = None


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

    @property
    def sent(self) -> int:
        """How many requests of the measurement have been sent."""
        return self._sent.value

    def start(self, count: int) -> None:
        """Start children until there are `count`, each connected. Raises ClientProcessError."""
        new: list[tuple[SpawnProcess, Connection]] = []
        for _ in range(len(self._children), count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_child, args=(theirs, self._setup, self._sent), daemon=True
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
        start = time.monotonic() + START_DELAY_S
        for rank, (_process, pipe) in enumerate(self._children):
            share = None if concurrency is None else concurrency // total + (rank < concurrency % total)
            due = None if arrivals is None else list(enumerate(arrivals))[rank::total]
            pipe.send(Measure(start, num_requests, output_len, share, due))
        pending = dict(enumerate(self._children))
        answers: list[Answer] = []
        while pending:
            multiprocessing.connection.wait([pipe for _process, pipe in pending.values()], timeout=0.5)
            for rank, child in list(pending.items()):
                if child[1].poll():
                    answers.append(_receive(child))
                    del pending[rank]
            tick(self.sent)
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


def _child(pipe: Connection, setup: ClientSetup, sent: Synchronized[int]) -> None:
    """Run one client process until its pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the pipe
    run_loop(_serve_orders(pipe, setup, sent))


async def _serve_orders(pipe: Connection, setup: ClientSetup, sent: Synchronized[int]) -> None:
    client = LoadClient(setup)
    try:
        await client.connect(CONNECT_TIMEOUT_S)
        pipe.send(Answer())
        while True:
            try:
                order = await asyncio.to_thread(pipe.recv)
            except (EOFError, OSError):
                return
            client.records = []
            load = await measure_load(_run(client, order, sent))
            pipe.send(Answer(client.records, load))
    except TimeoutError:
        pipe.send(
            Answer(failure=f"{setup.address} did not accept a connection within {CONNECT_TIMEOUT_S:g} s")
        )
    except (grpc.aio.UsageError, ValueError, OSError) as failure:
        pipe.send(Answer(failure=f"a client process failed: {failure}"))
    finally:
        await client.close()


async def _run(client: LoadClient, order: Warmup | Measure, sent: Synchronized[int]) -> None:
    if isinstance(order, Warmup):
        indexes = iter(range(order.count))
        await client.closed_loop(indexes, order.concurrency, order.output_len, warmup=True)
        return
    await asyncio.sleep(max(0.0, order.start - time.monotonic()))
    if order.due is not None:
        due = [(index, order.start + offset) for index, offset in order.due]
        await client.open_loop(due, order.output_len, lambda: _next(sent))
    elif order.concurrency:
        await client.closed_loop(_numbers(sent, order.num_requests), order.concurrency, order.output_len)


def _numbers(sent: Synchronized[int], end: int) -> Iterator[int]:
    """Yield the numbers that this process draws from the shared counter, up to `end`."""
    for _ in itertools.count():
        index = _next(sent, end)
        if index is None:
            return
        yield index


def _next(sent: Synchronized[int], end: int | None = None) -> int | None:
    with sent.get_lock():
        index = sent.value
        if end is not None and index >= end:
            return None
        sent.value = index + 1
        return index
