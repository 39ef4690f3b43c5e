"""Streams through the door whose events' arrivals are kept, one by one: what the goals are read from."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np

from hundredfold.client import AsyncClient
from hundredfold.v1 import control_pb2, control_pb2_grpc

SAMPLE_S = 1.0
FIRST_ID, LAST_ID = 1000, 40_000
"""Ordinary tokens of the default model; a smaller vocabulary takes what it has."""


def random_ids(seed: int, count: int, vocab_size: int) -> list[int]:
    """A prompt that no other seed begins like."""
    last = min(LAST_ID, vocab_size)
    return np.random.default_rng(seed).integers(min(FIRST_ID, last // 2), last, count).tolist()


@dataclass(slots=True)
class Stream:
    """One request: when it was sent, when its tokens came."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """To the first event with a token."""
        return self.arrivals[0] - self.sent

    def gaps_s(self, begin: float, end: float) -> np.ndarray:
        """Between events that both came in this time."""
        inside = [moment for moment in self.arrivals if begin <= moment <= end]
        return np.diff(inside)

    def gaps_beside_s(self, begin: float, end: float) -> np.ndarray:
        """Between events, where any part of the wait lies in this time."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return np.array([after - before for before, after in pairs if after > begin and before < end])


async def stream(
    client: AsyncClient,
    ids: Sequence[int],
    length: int,
    *,
    seed: int | None = None,
    heard: Callable[[Stream], object] = lambda _: None,
) -> Stream:
    """Greedy, or drawn with ``seed``; ``heard`` is told of each event."""
    found = Stream(time.monotonic())
    drawn = {"temperature": 0.0} if seed is None else {"temperature": 1.0, "seed": seed}
    async with client.generate(token_ids=ids, max_tokens=length, ignore_eos=True, **drawn) as events:
        async for event in events:
            count = len(getattr(event, "token_ids", ()))
            if count:
                found.arrivals.append(time.monotonic())
                found.tokens += count
                heard(found)
    return found


def one_by_one(
    address: str, prompts: Sequence[Sequence[int]], length: int, *, draw: bool = False
) -> list[Stream]:
    """Each when the one before has ended."""

    async def run() -> list[Stream]:
        async with AsyncClient(address) as client:
            return [
                await stream(client, ids, length, seed=number if draw else None)
                for number, ids in enumerate(prompts)
            ]

    return asyncio.run(run())


class Looks:
    """A scheduler's count of steps and a door's delay of tokens, looked at once a second by a thread."""

    def __init__(self, door: str, scheduler: str) -> None:
        self._where = door, scheduler
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.steps: list[tuple[float, int]] = []
        self.delay_s: list[float] = []

    def __enter__(self) -> Looks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def median_step_s(self) -> float:
        """The middle one of windows of two seconds in which steps ended, by their mean; pauses count."""
        pairs = list(zip(self.steps, self.steps[2:], strict=False))
        windows = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in pairs if b[1] > a[1]]
        return float(np.median(windows)) if windows else float("nan")

    def _run(self) -> None:
        with (
            grpc.insecure_channel(self._where[0]) as door,
            grpc.insecure_channel(self._where[1]) as scheduler,
        ):
            asked = [control_pb2_grpc.ControlServiceStub(channel) for channel in (door, scheduler)]
            while not self._stop.wait(SAMPLE_S):
                told, planned = (one.GetLoad(control_pb2.GetLoadRequest(), timeout=30) for one in asked)
                self.steps.append((time.monotonic(), planned.totals["steps"]))
                self.delay_s.append(told.totals["delta_delay_us"] / 1e6)
