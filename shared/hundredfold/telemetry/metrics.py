"""What a service measures, said in its own words; OpenTelemetry and Prometheus stay in here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Meter, NoOpMeterProvider, Observation

from hundredfold.telemetry import names

if TYPE_CHECKING:
    from hundredfold.config import ServiceSettings
    from hundredfold.telemetry.prometheus import Scrape


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One request that was served to its end. Times in seconds."""

    model: str
    operation: str
    """``chat`` or ``text_completion``."""
    duration_s: float
    """From arrival to the last message."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    time_to_first_token_s: float | None = None
    """From arrival, the queue included; ``None`` when there was no token."""
    queue_s: float | None = None
    priority: int = 0
    """As the request had it; only whether it is below, at or above 0 becomes a label."""
    error_type: str | None = None
    """Name of the gRPC status when it failed."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """How busy the service is at this moment."""

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    cache_usage: float | None = None
    """Share of blocks in use, 0 to 1; ``None`` where there is no cache."""
    free_blocks: int = 0
    cached_blocks: int = 0
    used_blocks: int = 0


class ServiceMetrics:
    """A service's metrics. Without a metrics port every call is a no-op. Any thread may record.

    ``reason`` and the like come from fixed sets in the code: no request id, prompt or key becomes a label.
    """

    def __init__(self, service: str, settings: ServiceSettings, scrape: Scrape | None = None) -> None:
        """``scrape`` is given by a room that answers scrapes itself."""
        self._scrape = scrape
        if scrape is None and settings.metrics_port is not None:
            # Imported here: a client, and a service without the port, have no use for the SDK.
            from hundredfold.telemetry.prometheus import open_scrape

            self._scrape = open_scrape(service, settings.listen, settings.metrics_port)
        meter = self._scrape.meter if self._scrape else NoOpMeterProvider().get_meter("hundredfold")
        self._meter: Meter = meter
        self._duration = meter.create_histogram(names.REQUEST_DURATION, "s", "Arrival to the last message")
        self._first = meter.create_histogram(names.TIME_TO_FIRST_TOKEN, "s", "Arrival to the first token")
        self._per_token = meter.create_histogram(
            names.TIME_PER_OUTPUT_TOKEN, "s", "Time per token after the first"
        )
        self._queue = meter.create_histogram(names.QUEUE_TIME, "s", "Arrival to the first step")
        self._step = meter.create_histogram(names.STEP_DURATION, "s", "One engine step")
        self._gap = meter.create_histogram(names.STEP_GAP, "s", "Between steps while sequences run")
        self._requests = meter.create_counter(names.REQUESTS, description="Requests that ended")
        self._prompt = meter.create_counter(names.PROMPT_TOKENS, description="Prompt tokens")
        self._cached = meter.create_counter(names.CACHED_TOKENS, description="Prompt tokens from the cache")
        self._output = meter.create_counter(
            names.OUTPUT_TOKENS, description="Output tokens of ended requests"
        )
        self._computed = meter.create_counter(names.COMPUTED_TOKENS, description="Tokens computed")
        self._recomputed = meter.create_counter(names.RECOMPUTED_TOKENS, description="Computed once before")
        self._drafted = meter.create_counter(names.DRAFTED_TOKENS, description="Draft tokens tried")
        self._accepted = meter.create_counter(
            names.ACCEPTED_TOKENS, description="Draft tokens that were right"
        )
        self._rejected = meter.create_counter(names.REJECTED, description="Requests refused")
        self._aborted = meter.create_counter(names.ABORTED, description="Requests given up by their client")
        self._preemptions = meter.create_counter(names.PREEMPTIONS, description="Sequences that lost blocks")

    def finished(self, request: FinishedRequest) -> None:
        """A request ended, well or with an error. Aborted and refused ones have counters of their own."""
        labels: dict[str, str] = {
            names.OPERATION: request.operation,
            names.PROVIDER: names.PROVIDER_NAME,
            names.REQUEST_MODEL: request.model,
            names.RESPONSE_MODEL: request.model,
        }
        if request.error_type is not None:
            labels[names.ERROR_TYPE] = request.error_type
        self._requests.add(1, labels)
        self._duration.record(request.duration_s, labels)
        self._prompt.add(request.prompt_tokens, labels)
        self._cached.add(request.cached_tokens, labels)
        self._output.add(request.output_tokens, labels)
        if request.queue_s is not None:
            level = "low" if request.priority < 0 else "high" if request.priority > 0 else "normal"
            self._queue.record(request.queue_s, labels | {names.PRIORITY: level})
        first = request.time_to_first_token_s
        if first is not None:
            self._first.record(first, labels)
            if request.output_tokens > 1:
                per_token = (request.duration_s - first) / (request.output_tokens - 1)
                self._per_token.record(per_token, labels)

    def rejected(self, reason: str) -> None:
        """A request was refused; ``reason`` is one of a fixed set such as ``queue_full``."""
        self._rejected.add(1, {names.REASON: reason})

    def aborted(self) -> None:
        """A request's client gave it up."""
        self._aborted.add(1)

    def preempted(self) -> None:
        """A sequence lost its blocks and will be computed again."""
        self._preemptions.add(1)

    def step(self, duration_s: float, computed_tokens: int, recomputed_tokens: int = 0) -> None:
        """A step is over; ``recomputed_tokens`` of its tokens had been computed before a preemption."""
        self._step.record(duration_s)
        self._computed.add(computed_tokens)
        self._recomputed.add(recomputed_tokens)

    def drafted(self, tried: int, accepted: int) -> None:
        """A step tried so many draft tokens, and so many of them became part of answers."""
        self._drafted.add(tried)
        self._accepted.add(accepted)

    def gap(self, seconds: float) -> None:
        """The device waited for its next step although sequences were running."""
        self._gap.record(seconds)

    def watch_load(self, read: Callable[[], LoadSample]) -> None:
        """Show as gauges what ``read`` returns at each scrape. It is called on the scraper's thread."""
        gauges: list[tuple[str, str, Callable[[LoadSample], list[Observation]]]] = [
            (names.RUNNING, "Requests that run", lambda s: [Observation(s.running)]),
            (names.WAITING, "Requests that wait", lambda s: [Observation(s.waiting)]),
            (names.WAITING_TOKENS, "Prompt tokens that wait", lambda s: [Observation(s.waiting_tokens)]),
            (names.CACHE_USAGE, "Share of cache blocks in use", _cache_usage),
            (names.CACHE_BLOCKS, "Cache blocks by state", _cache_blocks),
        ]
        for name, description, observe in gauges:

            def callback(
                options: CallbackOptions, observe: Callable[[LoadSample], list[Observation]] = observe
            ) -> list[Observation]:
                return observe(read())

            self._meter.create_observable_gauge(name, [callback], description=description)

    @contextlib.contextmanager
    def serve(self) -> Iterator[None]:
        """Answer scrapes meanwhile. Raises ``StartError`` when the port cannot be had."""
        if self._scrape is None or self._scrape.port is None:
            yield
            return
        with self._scrape.serve():
            yield


def _cache_usage(sample: LoadSample) -> list[Observation]:
    return [] if sample.cache_usage is None else [Observation(sample.cache_usage)]


def _cache_blocks(sample: LoadSample) -> list[Observation]:
    if sample.cache_usage is None:
        return []
    blocks = {"free": sample.free_blocks, "cached": sample.cached_blocks, "used": sample.used_blocks}
    return [Observation(count, {names.STATE: state}) for state, count in blocks.items()]
