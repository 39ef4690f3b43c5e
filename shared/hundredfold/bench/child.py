"""The life of one client process: it takes orders from a pipe and answers every one.

Before the measurement each child prepares what is due first and says so; then all hear the moment, on the
monotonic clock that they share, at which it begins.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import grpc

from hundredfold.bench.client import ClientLoad, ClientSetup, LoadClient, measure_load
from hundredfold.bench.report import RequestRecord
from hundredfold.rpc import run_loop, wait_for_turns

CONNECT_TIMEOUT_S = 30.0

Work = Coroutine[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Warmup:
    """Send these many requests, at most so many at a time."""

    count: int
    concurrency: int
    output_len: int


@dataclass(frozen=True, slots=True)
class Measure:
    """Prepare a child's part of the measurement, answer, then run it from the moment that follows."""

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


def run_child(pipe: Connection, setup: ClientSetup, sent: Synchronized[int]) -> None:
    """Run one client process until its pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the pipe
    wait_for_turns()
    run_loop(_serve_orders(pipe, setup, sent))


async def _serve_orders(pipe: Connection, setup: ClientSetup, sent: Synchronized[int]) -> None:
    client = LoadClient(setup)
    try:
        await client.connect(CONNECT_TIMEOUT_S)
        pipe.send(Answer())
        while True:
            order: Warmup | Measure = await asyncio.to_thread(pipe.recv)
            client.records = []
            if isinstance(order, Warmup):
                work = _warmup(client, order)
            else:
                prepared = _prepare(client, order, sent)
                pipe.send(Answer())
                start: float = await asyncio.to_thread(pipe.recv)
                await asyncio.sleep(max(0.0, start - time.monotonic()))
                work = prepared(start)
            load = await measure_load(work)
            pipe.send(Answer(client.records, load))
    except EOFError:
        return
    except TimeoutError:
        pipe.send(Answer(failure=f"{setup.address} did not accept a connection in {CONNECT_TIMEOUT_S:g} s"))
    except (grpc.aio.UsageError, ValueError, OSError) as failure:
        pipe.send(Answer(failure=f"a client process failed: {failure}"))
    finally:
        await client.close()


async def _warmup(client: LoadClient, order: Warmup) -> None:
    numbers = iter(range(order.count))
    first = [
        client.request(index, order.output_len, warmup=True)
        for index in itertools.islice(numbers, order.concurrency)
    ]
    await client.closed_loop(first, numbers, order.output_len, warmup=True)


def _prepare(client: LoadClient, order: Measure, sent: Synchronized[int]) -> Callable[[float], Work]:
    """Make the requests that are due first, so that making them delays none; return how to send all."""
    if order.due is not None:
        ready = [(client.request(index, order.output_len), offset) for index, offset in order.due]
        return lambda start: client.open_loop(
            ((request, start + offset) for request, offset in ready), lambda: _next(sent)
        )
    numbers = _numbers(sent, order.num_requests)
    first = [
        client.request(index, order.output_len) for index in itertools.islice(numbers, order.concurrency)
    ]
    return lambda start: client.closed_loop(first, numbers, order.output_len)


def _numbers(sent: Synchronized[int], end: int) -> Iterator[int]:
    """Yield the numbers that this process draws from the shared counter, up to `end`."""
    while (index := _next(sent)) < end:
        yield index


def _next(sent: Synchronized[int]) -> int:
    with sent.get_lock():
        index = sent.value
        sent.value = index + 1
        return index
