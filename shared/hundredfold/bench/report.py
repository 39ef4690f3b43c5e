"""What a benchmark found: the record of one request, its statistics, the report and its JSON.

Every figure is defined here, once, for `bench serve` and `bench offline` alike:

* The **measurement window** runs from the first measured request's start to the end of the last one.
  Warm-up requests end before it begins and count nowhere. A request's *start* is the moment it was due: in
  open loop its scheduled arrival (so a late client or a full server shows up in the latencies, not in a
  gentler load), in closed loop the moment it was sent.
* `output_tokens_per_s` and `requests_per_s` count requests that succeeded, over the whole window. Tokens
  are the server's own count (`usage.completion_tokens`), never text tokenized again.
* `latency_ms`: start to the last event. `ttft_ms`: start to the first event that carries a token, so it
  includes the time in every queue.
* `itl_ms`: the gap between consecutive *events* that carry tokens, pooled over all requests. An event may
  bring several tokens (speculation, coalescing).
* `tpot_ms`: per *token*: (last token event - first token event) / (completion tokens after the first
  event), one value a request. When events bring one token each, the mean ITL and the mean TPOT agree.
* A failed request is counted in `requests`, `failed` and `failures`, and in no distribution.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import numpy as np

Number = int | float | str | bool | None
"""What a parameter or a figure of the load tool may be."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of a sample, in milliseconds; all None when nothing was measured."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @classmethod
    def of_seconds(cls, seconds: Sequence[float] | np.ndarray[Any, Any]) -> Self:
        """Describe a sample of durations in seconds. Percentiles interpolate linearly between samples."""
        sample = np.asarray(seconds, dtype=np.float64) * 1e3
        if sample.size == 0:
            return cls()
        p50, p90, p99 = (float(value) for value in np.percentile(sample, (50, 90, 99)))
        return cls(float(sample.mean()), p50, p90, p99)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One measured request. Times are seconds on one monotonic clock shared by all client processes."""

    start: float
    """When it was due: scheduled arrival (open loop) or send (closed loop)."""
    end: float
    """When its last event, or its failure, arrived."""
    event_times: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.empty(0))
    """[events] float64: arrival of each event that carried tokens."""
    first_event_tokens: int = 0
    """Tokens in the first of these events."""
    received_tokens: int = 0
    """Token ids that the client saw in all events."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    """The server's counts, from the finished event."""
    queue_s: float | None = None
    """The server's own queue time, where it tells."""
    preemptions: int = 0
    error: str | None = None
    """gRPC status name, or INCOMPLETE when the stream ended without a finished event; None for a success."""
    detail: str = ""
    """What the server said with the error."""

    @property
    def ttft_s(self) -> float | None:
        """Start to first token in seconds; None when no token came."""
        return float(self.event_times[0]) - self.start if self.event_times.size else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first event; None when nothing followed it."""
        later = self.completion_tokens - self.first_event_tokens
        if self.event_times.size < 2 or later <= 0:
            return None
        return float(self.event_times[-1] - self.event_times[0]) / later


@dataclass(frozen=True, slots=True)
class Environment:
    """What was measured: filled from GetServerInfo by `serve`, from the process itself by `offline`."""

    device: str = "unknown"
    precision: str = "unknown"
    """Type of activations, then quantization and cache encoding, such as "bf16, gguf weights, bf16 cache"."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version by library, hundredfold first."""
    peak_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Highest resident bytes of each process since it started, by service."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one run. `to_json` has exactly these keys."""

    mode: str
    """serve or offline."""
    output_tokens_per_s: float
    requests_per_s: float
    requests: int
    """Measured requests, failed ones included."""
    failed: int
    failures: Mapping[str, int]
    """Failed requests by status."""
    failure_examples: Sequence[str]
    """A few of the messages that came with them."""
    duration_s: float
    """Length of the measurement window."""
    latency_ms: Distribution
    ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    server_queue_ms: Distribution
    """The server's own queue time; part of ttft_ms."""
    input_tokens: int
    output_tokens: int
    """Prompt and completion tokens of the successful requests."""
    cached_tokens_share: float
    """Prompt tokens that the prefix cache saved, as a share of input_tokens."""
    repeated_prompts_share: float
    """Share of the prompts that an earlier prompt of the run equals."""
    preemptions: int
    count_mismatches: int
    """Successful requests whose received ids differ in number from the server's count. Should be 0."""
    peak_memory_bytes: Mapping[str, int]
    device: str
    precision: str
    versions: Mapping[str, str]
    parameters: Mapping[str, Number]
    """The run's parameters, by flag."""
    client: Mapping[str, Number]
    """The load tool itself: processes, cpu_share (of one core, the busiest process), loop_lag_p99_ms."""
    warnings: Sequence[str]
    """What a reader has to know before trusting the figures."""

    def to_json(self) -> str:
        """Return one JSON object with exactly this class's fields as keys; distributions become objects."""
        return json.dumps(asdict(self), indent=2, allow_nan=False, default=_plain)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote. Raises ValueError naming the missing or unknown keys."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"a report is one JSON object, this is a {type(data).__name__}")
        wanted = {item.name for item in fields(cls)}
        if data.keys() != wanted:
            missing, unknown = sorted(wanted - data.keys()), sorted(data.keys() - wanted)
            raise ValueError(f"not a report: missing keys {missing}, unknown keys {unknown}")
        for item in fields(cls):
            if item.type == "Distribution":
                data[item.name] = Distribution(**data[item.name])
        return cls(**data)


def summarize(
    records: Sequence[RequestRecord],
    *,
    mode: str,
    environment: Environment,
    parameters: Mapping[str, Number],
    client: Mapping[str, Number] | None = None,
    repeated_prompts_share: float = 0.0,
    warnings: Iterable[str] = (),
) -> Report:
    """Turn the records of one run into its report. Raises ValueError when there are none."""
    if not records:
        raise ValueError("no request was measured")
    good = [record for record in records if record.error is None]
    failures = Counter(record.error for record in records if record.error is not None)
    duration = max(record.end for record in records) - min(record.start for record in records)
    duration = max(duration, 1e-9)
    output_tokens = sum(record.completion_tokens for record in good)
    input_tokens = sum(record.prompt_tokens for record in good)
    mismatches = sum(record.received_tokens != record.completion_tokens for record in good)
    gaps = [np.diff(record.event_times) for record in good]
    told = list(warnings)
    if mismatches:
        told.append(f"{mismatches} requests delivered another number of token ids than the server counted")
    return Report(
        mode=mode,
        output_tokens_per_s=output_tokens / duration,
        requests_per_s=len(good) / duration,
        requests=len(records),
        failed=len(records) - len(good),
        failures={str(status): count for status, count in sorted(failures.items(), key=str)},
        failure_examples=_examples(records),
        duration_s=duration,
        latency_ms=Distribution.of_seconds([record.end - record.start for record in good]),
        ttft_ms=Distribution.of_seconds(_known(record.ttft_s for record in good)),
        tpot_ms=Distribution.of_seconds(_known(record.tpot_s for record in good)),
        itl_ms=Distribution.of_seconds(np.concatenate(gaps) if gaps else []),
        server_queue_ms=Distribution.of_seconds(_known(record.queue_s for record in good)),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens_share=sum(record.cached_tokens for record in good) / max(input_tokens, 1),
        repeated_prompts_share=repeated_prompts_share,
        preemptions=sum(record.preemptions for record in good),
        count_mismatches=mismatches,
        peak_memory_bytes=dict(environment.peak_memory_bytes),
        device=environment.device,
        precision=environment.precision,
        versions=dict(environment.versions),
        parameters=dict(parameters),
        client=dict(client or {}),
        warnings=told,
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _examples(records: Sequence[RequestRecord], limit: int = 3) -> list[str]:
    """Return the first few different messages of failed requests."""
    seen: dict[str, None] = {}
    for record in records:
        if record.error is not None:
            seen.setdefault(f"{record.error}: {record.detail[:300]}" if record.detail else record.error)
            if len(seen) == limit:
                break
    return list(seen)


def _plain(value: object) -> object:
    """Let mappings and sequences that are no dict or list into JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not belong into a report")
