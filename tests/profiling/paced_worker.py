"""A worker of given speed as a process: answers any plan with random ids, and costs next to nothing itself.

A step takes ``fixed + per_row * decodes + per_token * prompt tokens``. The worker sleeps through it, or with
``--burn`` computes on so many threads as a real one would, with a fixed amount of work: then what the other
services take from the cores makes its steps longer.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.internal.v1 import sequence_pb2, worker_pb2, worker_pb2_grpc
from hundredfold.rpc import PROTOCOL_VERSION, run_loop, server_options

_UNIT = 128
_RAW_IDS = (300, 20_000)
"""Ordinary words of any vocabulary that is large enough."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a step takes, in seconds."""

    fixed: float
    per_row: float
    per_token: float

    def seconds(self, plan: worker_pb2.StepPlan, repeats: int) -> float:
        """The time of a plan that went on so often; rows of one token are decodes, and all that go on."""
        if plan.num_repeats:
            return (1 + repeats) * (self.fixed + self.per_row * len(plan.slots))
        rows = sum(count == 1 for count in plan.num_tokens)
        return self.fixed + self.per_row * rows + self.per_token * (sum(plan.num_tokens) - rows)


class Burner:
    """Computes for a while on some threads, which take units of work from one heap as kernels take tiles.
    Numpy's own pool has to be one thread (``OPENBLAS_NUM_THREADS=1``).
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._matrices = [np.random.default_rng(i).random((_UNIT, _UNIT), np.float32) for i in range(threads)]
        self._unit_s = min(self._measure() for _ in range(5))

    def run(self, seconds: float) -> None:
        """As much as takes so long when nobody disturbs."""
        self._burn(max(1, round(seconds * self._threads / self._unit_s)))

    def _measure(self) -> float:
        units = 400
        start = time.perf_counter()
        self._burn(units)
        return (time.perf_counter() - start) * self._threads / units

    def _burn(self, units: int) -> None:
        numbers = itertools.count()
        list(self._pool.map(lambda matrix: self._take(matrix, numbers, units), self._matrices))

    def _take(self, matrix: Any, numbers: Any, units: int) -> None:
        out = np.empty_like(matrix)
        while next(numbers) < units:
            for _ in range(8):
                np.dot(matrix, matrix, out=out)


class PacedWorker(worker_pb2_grpc.WorkerServiceServicer, health_pb2_grpc.HealthServicer):
    """One scheduler at a time; sequences end by length alone."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._speed = Speed(args.fixed_ms / 1e3, args.row_us / 1e6, args.token_us / 1e6)
        self._burner = Burner(args.burn) if args.burn else None
        self._incarnation = f"paced-{os.getpid()}"

    async def Check(  # type: ignore[override]
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    async def GetWorkerInfo(
        self, request: worker_pb2.GetWorkerInfoRequest, context: Any
    ) -> worker_pb2.GetWorkerInfoResponse:
        args = self._args
        return worker_pb2.GetWorkerInfoResponse(
            protocol_version=PROTOCOL_VERSION,
            incarnation=self._incarnation,
            ready=True,
            model_fingerprint=args.fingerprint,
            max_model_len=8192,
            vocab_size=args.vocab_size,
            block_size=32,
            num_blocks=args.max_num_seqs * 32,
            bytes_per_block=1,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
        )

    async def Execute(  # type: ignore[override]
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: Any
    ) -> None:
        await anext(aiter(request_iterator))
        welcome = worker_pb2.ExecuteWelcome(incarnation=self._incarnation)
        await context.write(worker_pb2.ExecuteResponse(welcome=welcome))
        plans: asyncio.Queue[worker_pb2.StepPlan] = asyncio.Queue()
        computing = asyncio.create_task(self._compute(plans, context))
        try:
            async for message in request_iterator:
                plans.put_nowait(message.plan)
        finally:
            computing.cancel()

    async def _compute(self, plans: asyncio.Queue[worker_pb2.StepPlan], context: Any) -> None:
        loop = asyncio.get_running_loop()
        answer = answers()
        end = loop.time()
        while True:
            plan = await plans.get()
            start = max(end, loop.time()) if self._burner is None else loop.time()
            result = answer(plan)
            seconds = self._speed.seconds(plan, result.num_repeats)
            if self._burner is None:
                end = start + seconds
                await asyncio.sleep(max(0.0, end - loop.time()))
            else:
                await loop.run_in_executor(None, self._burner.run, seconds)
                end = loop.time()
            result.step_us = max(1, round((end - start) * 1e6))
            await context.write(worker_pb2.ExecuteResponse(result=result))


def answers() -> Callable[[worker_pb2.StepPlan], worker_pb2.StepResult]:
    """What makes results: one random id for every row that reaches its last known token, and for each pass
    that follows.
    """
    held: dict[int, list[int]] = {}
    ids = deque(random.Random(0).choices(range(*_RAW_IDS), k=65_536))

    def answer(plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        for new in plan.new_sequences:
            prompt, known = len(new.prompt_token_ids), len(new.prompt_token_ids) + len(new.output_token_ids)
            held[new.slot] = [new.num_computed_tokens, known, prompt + new.params.max_tokens]
        result = worker_pb2.StepResult(step=plan.step)
        computed, counts = [], []
        for row, (slot, num_tokens) in enumerate(zip(plan.slots, plan.num_tokens, strict=True)):
            state = held[slot]
            sampled = 0
            if state[1] < state[2]:
                state[0] += num_tokens
                sampled = min(max(0, state[0] - state[1] + 1), state[2] - state[1])
                state[1] += sampled
                state[0] = min(state[0], state[1] - 1) if sampled else state[0]
                if state[1] == state[2]:
                    result.ends.add(row=row, reason=sequence_pb2.END_REASON_LENGTH)
            computed.append(state[0])
            counts.append(sampled)
        result.num_repeats = min(plan.num_repeats, max(1, *counts, 0) - 1)
        result.num_computed_tokens.extend(computed)
        result.num_output_tokens.extend(counts)
        result.token_ids.extend(ids[i] for i in range(sum(counts)))
        ids.rotate(-sum(counts))
        return result

    return answer


async def serve(args: argparse.Namespace) -> None:
    """Until SIGTERM."""
    server = grpc.aio.server(options=server_options(64 << 20))
    worker = PacedWorker(args)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)
    health_pb2_grpc.add_HealthServicer_to_server(worker, server)
    server.add_insecure_port(args.listen)
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.stop(0)


def main() -> None:
    """Parse and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--fingerprint", required=True)
    parser.add_argument("--vocab-size", type=int, default=200_000)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--fixed-ms", type=float, default=23.0)
    parser.add_argument("--row-us", type=float, default=890.0)
    parser.add_argument("--token-us", type=float, default=300.0)
    parser.add_argument("--burn", type=int, default=0, help="threads that compute; 0 sleeps")
    run_loop(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
