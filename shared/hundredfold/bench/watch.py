"""Watches a running server for some seconds: its counters at both ends, its queue in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import fmean

from hundredfold.bench.bottleneck import Observation
from hundredfold.bench.neighbours import Loads, Neighbours, ask_loads, ask_neighbours
from hundredfold.bench.server import ServerError
from hundredfold.v1.control_pb2 import RuntimeInfo

LOOK_EVERY_S = 0.5
_INT8_WORDS = ("int8",)


def watch(address: str, seconds: float, progress: Callable[[float], None]) -> Observation:
    """Look at the services behind a door; ``progress`` hears how many seconds have passed.

    Raises ServerError when one of them cannot be asked: what they do is known to nobody else.
    """
    neighbours = ask_neighbours(address)
    first = _look(neighbours)
    begun, looks = time.monotonic(), [first]
    while (passed := time.monotonic() - begun) < seconds:
        progress(passed)
        time.sleep(min(LOOK_EVERY_S, seconds - passed))
        looks.append(_look(neighbours))
    return observe(neighbours, looks, time.monotonic() - begun)


def observe(neighbours: Neighbours, looks: Sequence[Loads], seconds: float) -> Observation:
    """Put looks together; the counters of the last less those of the first."""
    first, last = looks[0], looks[-1]

    def worker(name: str) -> int:
        return last.worker_total(name) - first.worker_total(name)

    def scheduler(name: str) -> int:
        return last.scheduler_total(name) - first.scheduler_total(name)

    queues = [look.scheduler for look in looks if look.scheduler is not None]
    info = neighbours.runtime
    runtime = info.runtime if info is not None else RuntimeInfo()
    settings = info.settings if info is not None else {}
    used = fmean([queue.blocks.used for queue in queues]) if queues else 0.0
    count = max(len(last.workers), 1)
    return Observation(
        seconds=seconds,
        running=fmean([queue.running for queue in queues]) if queues else 0.0,
        waiting=fmean([queue.waiting for queue in queues]) if queues else 0.0,
        seats=sum(worker.seats for worker in queues[-1].workers) if queues else 0,
        cache_usage=max((queue.cache_usage for queue in queues), default=0.0),
        steps=worker("steps"),
        computed_tokens=scheduler("computed_tokens"),
        prefill_tokens=scheduler("prefill_tokens"),
        output_tokens=scheduler("output_tokens"),
        recomputed_tokens=scheduler("recomputed_tokens"),
        preemptions=scheduler("preemptions"),
        step_s=worker("step_total_us") / 1e6,
        forward_s=worker("step_forward_us") / 1e6,
        sample_s=worker("step_sample_us") / 1e6,
        gap_s=worker("step_gap_us") / 1e6,
        unread_bytes=last.door.totals.get("unread_bytes", 0) if last.door is not None else 0,
        weight_bytes=runtime.weight_bytes,
        layer_weights=runtime.layer_weights,
        output_weights=runtime.output_weights,
        cache_bytes=used * runtime.bytes_per_block / count,
        arithmetic=arithmetic_of(runtime),
        workers=count,
        max_num_batched_tokens=int(settings.get("max_num_batched_tokens", "0") or 0),
    )


def arithmetic_of(runtime: RuntimeInfo) -> str:
    """``int8`` when the products are of integers, as far as the worker's choices tell; else ``float``."""
    for selection in runtime.selections:
        whole = selection.subject in ("activations", "quantization")
        if whole and any(word in selection.chosen for word in _INT8_WORDS):
            return "int8"
    return "float"


def _look(neighbours: Neighbours) -> Loads:
    loads = ask_loads(neighbours)
    if loads.scheduler is None or not loads.workers:
        missing = [f"{who} ({why})" for who, why in loads.unasked.items()] or ["scheduler or worker"]
        raise ServerError(
            f"{', '.join(missing)} cannot be asked from here; run this where the services' own addresses "
            "lead to them, such as in the door's container"
        )
    return loads
