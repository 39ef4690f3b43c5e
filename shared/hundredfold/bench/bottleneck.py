"""Says what binds a running server, from two looks at its counters: the evidence, and the setting to move.

Pure: the looks are taken in ``watch.py``. Each finding has a *weight*, the part of the time (0 to 1) that it
explains or could win; the heaviest is what binds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hundredfold.bench.ceilings import Ceilings

IDLE_LOAD = 0.5
"""Requests on average below which there is nothing to find."""
NEAR = 0.55
"""Share of a ceiling from which the ceiling is what binds: no kernel reaches all of it."""
FULL_CACHE = 0.95
WAITING_GAP = 0.10
"""Part of the time that workers may wait for plans before it counts."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What happened between two looks, added up over the workers, and what was seen on average."""

    seconds: float
    running: float
    """Sequences that held seats, on average."""
    waiting: float
    """Requests in the queue, on average."""
    seats: int
    cache_usage: float
    """Highest share of the cache in use."""
    steps: int
    computed_tokens: int
    prefill_tokens: int
    output_tokens: int
    recomputed_tokens: int
    preemptions: int
    step_s: float
    """Time in steps."""
    forward_s: float
    sample_s: float
    gap_s: float
    """Time between steps while sequences ran."""
    unread_bytes: int
    """Output that waits for clients who do not read, at the last look."""
    weight_bytes: int = 0
    layer_weights: int = 0
    output_weights: int = 0
    cache_bytes: float = 0.0
    """Bytes of the blocks in use, on average."""
    arithmetic: str = "float"
    workers: int = 1
    max_num_batched_tokens: int = 0

    @property
    def busy(self) -> float:
        """Part of the time in which workers computed."""
        return min(1.0, self.step_s / (self.seconds * max(self.workers, 1)))

    @property
    def step_ms(self) -> float:
        """A step's mean duration."""
        return 1e3 * self.step_s / self.steps if self.steps else 0.0

    @property
    def read_bytes_per_s(self) -> float:
        """Weights once a step and the cache in use, by the time of the forward passes."""
        return self.steps * (self.weight_bytes + self.cache_bytes) / self.forward_s if self.forward_s else 0.0

    @property
    def operations_per_s(self) -> float:
        """Operations of the products with weights, by the time of the forward passes."""
        products = self.layer_weights * self.computed_tokens + self.output_weights * self.output_tokens
        return 2.0 * products / self.forward_s if self.forward_s else 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that holds the server back."""

    name: str
    """bandwidth, arithmetic, prefill, cache, queue, delivery, sampling, kernels or idle."""
    weight: float
    evidence: str
    advice: str


def diagnose(seen: Observation, ceilings: Ceilings | None) -> list[Finding]:
    """The findings, heaviest first; never empty."""
    if seen.running + seen.waiting < IDLE_LOAD or not seen.steps:
        return [_idle(seen)]
    judges: tuple[Callable[[], Finding | None], ...] = (
        lambda: _queue(seen),
        lambda: _cache(seen),
        lambda: _prefill(seen),
        lambda: _delivery(seen),
        lambda: _sampling(seen),
        lambda: _device(seen, ceilings),
    )
    found = [finding for judge in judges if (finding := judge()) is not None]
    return sorted(found, key=lambda finding: finding.weight, reverse=True) or [_idle(seen)]


def _idle(seen: Observation) -> Finding:
    return Finding(
        "idle",
        0.0,
        f"{seen.running:.1f} requests ran and {seen.waiting:.1f} waited on average",
        "nothing binds: put load on it, or look for longer",
    )


def _queue(seen: Observation) -> Finding | None:
    """All seats are taken while others wait."""
    if seen.waiting < 1 or not seen.seats or seen.running < 0.95 * seen.seats:
        return None
    share = seen.waiting / (seen.waiting + seen.running)
    return Finding(
        "queue",
        share,
        f"all {seen.seats} seats were taken and {seen.waiting:.0f} requests waited; the cache was at most "
        f"{seen.cache_usage:.0%} full",
        "raise worker.max_num_seqs if the latency of a token may grow; else add a worker",
    )


def _cache(seen: Observation) -> Finding | None:
    """Blocks are short: sequences are put aside and computed again, or wait with seats free."""
    if seen.preemptions == 0 and (seen.cache_usage < FULL_CACHE or seen.waiting < 1):
        return None
    again = seen.recomputed_tokens / max(seen.computed_tokens, 1)
    held = seen.waiting / (seen.waiting + seen.running) if seen.cache_usage >= FULL_CACHE else 0.0
    return Finding(
        "cache",
        max(again, held, 0.01),
        f"the cache was {seen.cache_usage:.0%} full, {seen.preemptions} sequences were put aside and "
        f"{again:.0%} of the computed tokens were computed before",
        "raise worker.memory_utilization (or num_kv_blocks), halve the cache with "
        "worker.kv_cache_dtype=int8, or lower worker.max_num_seqs",
    )


def _prefill(seen: Observation) -> Finding | None:
    """Prompt tokens in the steps of those that decode."""
    share = seen.prefill_tokens / max(seen.computed_tokens, 1)
    decoding = seen.output_tokens > 0 and seen.running >= 2
    if not decoding or share < 0.25:
        return None
    return Finding(
        "prefill",
        share * seen.busy * 0.8,
        f"{share:.0%} of the computed tokens were prompt tokens, in steps of {seen.step_ms:.0f} ms on "
        "average that others decode in",
        "for even gaps between tokens set scheduler.step_target_ms or lower worker.max_num_batched_tokens "
        f"({seen.max_num_batched_tokens}); prompts with a common start cost less when they share it exactly",
    )


def _delivery(seen: Observation) -> Finding | None:
    """Workers wait although requests run: planning, transport or the processor is short."""
    gap = min(1.0, seen.gap_s / (seen.seconds * max(seen.workers, 1)))
    if gap < WAITING_GAP or seen.running < 1:
        return None
    reading = (
        f"; {seen.unread_bytes / 1024:.0f} KiB wait for clients that do not read" if seen.unread_bytes else ""
    )
    return Finding(
        "delivery",
        gap,
        f"the workers waited {gap:.0%} of the time although {seen.running:.0f} sequences ran{reading}",
        "give the door and the scheduler cores of their own (fewer worker.num_threads), raise "
        "tokenizer.max_delta_delay_s so that tokens travel together, keep scheduler.max_plans_in_flight at 2",
    )


def _sampling(seen: Observation) -> Finding | None:
    share = seen.sample_s / seen.step_s if seen.step_s else 0.0
    if share < 0.15:
        return None
    return Finding(
        "sampling",
        share * seen.busy,
        f"{share:.0%} of a step's time went into drawing tokens",
        "requests with logprobs, penalties or top_p over a large vocabulary cost most: ask for less of them",
    )


def _device(seen: Observation, ceilings: Ceilings | None) -> Finding:
    """The forward passes themselves: which ceiling they are nearer to."""
    part = min(1.0, seen.forward_s / (seen.seconds * max(seen.workers, 1)))
    rows = seen.computed_tokens / seen.steps
    if ceilings is None or not ceilings.read_bytes_per_s:
        return Finding(
            "kernels",
            part,
            f"forward passes took {part:.0%} of the time, {rows:.0f} tokens in each; the machine's ceilings "
            "are not known",
            "run `hundredfold bench ladder` on this machine once: it measures and keeps them",
        )
    read = seen.read_bytes_per_s / ceilings.read_bytes_per_s
    ceiling = ceilings.operations(seen.arithmetic)
    products = seen.operations_per_s / ceiling if ceiling else 0.0
    figures = (
        f"forward passes took {part:.0%} of the time; in them {read:.0%} of the memory bandwidth and "
        f"{products:.0%} of the {seen.arithmetic} products this machine can do, {rows:.0f} tokens a step"
    )
    if max(read, products) < NEAR:
        return Finding(
            "kernels",
            part / 2,
            f"{figures}: near neither ceiling",
            "more requests at once fill the steps (worker.max_num_seqs); `hundredfold info` says which "
            "kernels were refused, and why",
        )
    if read >= products:
        return Finding(
            "bandwidth",
            part,
            figures,
            "batch more requests, or read less: worker.quantization=int8, worker.kv_cache_dtype=int8, "
            "worker.speculative=ngram for few requests that copy",
        )
    return Finding(
        "arithmetic",
        part,
        figures,
        "cheaper products: worker.activations=int8 or worker.quantization=int8; more cores, or another "
        "worker on another machine",
    )
