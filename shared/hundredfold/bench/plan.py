"""What load to put on the server: the plan of a run, its presets and its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from hundredfold.bench.arrivals import Arrival
from hundredfold.bench.report import Number

PRESETS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "single": {"concurrency": 1, "num_requests": 8, "input_len": 64, "output_len": 128},
        "concurrent-20": {"concurrency": 20, "num_requests": 80, "input_len": 64, "output_len": 128},
        "long-2048x2048": {"concurrency": 4, "num_requests": 8, "input_len": 2048, "output_len": 2048},
    }
)
"""The three baselines that people ask for. A flag given beside a preset wins over it."""

WARMUP_OUTPUT_LEN = 32
"""Most tokens that a warm-up request generates."""


class PlanError(ValueError):
    """A plan that cannot be run; the message names flag, value and limit."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One run. Closed loop when `concurrency` is set, open loop when `arrival` is."""

    address: str = "127.0.0.1:50051"
    num_requests: int = 80
    input_len: int = 64
    output_len: int = 128
    concurrency: int | None = None
    """Requests in flight at any time, the batch; the next is sent when one ends."""
    beam_width: int | None = None
    """Beams of each request; None samples. Width 1 is a beam search of one beam."""
    rate: float | None = None
    """Requests per second, sent at their time however many are in flight."""
    arrival: Arrival | None = None
    temperature: float = 0.0
    seed: int = 0
    """Of prompts, arrivals and sampling."""
    warmup: int = 0
    """Requests before the measurement."""
    shared_prefix: int = 0
    """Leading prompt tokens that all requests share."""
    phrase: int = 0
    """Prompt tokens after which a prompt repeats itself: copy-heavy work; 0 draws every token."""
    prompts: Path | None = None
    """Text prompts, one a line, in place of random ids; what describes those does not count then."""
    timeout_s: float = 600.0
    """Deadline of each request."""
    client_processes: int | None = None
    """None lets the warm-up decide."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run. Raises PlanError."""
        if self.concurrency is not None:  # before what make_plan derives from it
            _within("--concurrency", self.concurrency, 1, 10_000)
        _within("--num-requests", self.num_requests, 1, 1_000_000)
        _within("--input-len", self.input_len, 1, 1_000_000)
        _within("--output-len", self.output_len, 1, 1_000_000)
        _within("--temperature", self.temperature, 0, 100)
        _within("--seed", self.seed, 0, 2**63 - 1)
        _within("--warmup", self.warmup, 0, 10_000)
        _within("--shared-prefix", self.shared_prefix, 0, self.input_len)
        _within("--phrase", self.phrase, 0, self.input_len)
        _within("--timeout", self.timeout_s, 1e-3, 86_400)
        if self.beam_width is not None:
            _within("--beam-width", self.beam_width, 1, 8)
            if self.temperature:
                raise PlanError("--temperature does not go with --beam-width: beams are not drawn")
        if self.client_processes is not None:
            _within("--client-processes", self.client_processes, 1, 64)
        if (self.concurrency is None) == (self.arrival is None):
            raise PlanError(
                "a run is a closed loop (--concurrency) or an open one (--rate, --arrival), not both"
            )
        if self.concurrency is not None and self.rate is not None:
            raise PlanError("--rate belongs to an open loop, --concurrency to a closed one: give one of them")
        if self.rate is not None:
            _within("--rate", self.rate, 1e-6, 1e6)
        if self.arrival is Arrival.POISSON and self.rate is None:
            raise PlanError("--arrival poisson needs --rate")

    @property
    def parallel(self) -> int:
        """How many warm-up requests run at a time."""
        return self.concurrency if self.concurrency is not None else 16

    def parameters(self) -> dict[str, Number]:
        """Return the run's parameters by flag, for the report."""
        values = asdict(self)
        values["prompts"] = None if self.prompts is None else self.prompts.name
        values["timeout"] = values.pop("timeout_s")
        return {name.replace("_", "-"): value for name, value in values.items()}


def make_plan(preset: str | None, given: Mapping[str, object]) -> LoadPlan:
    """Combine a preset with the flags that were given (values that are not None). Raises PlanError."""
    flags = {name: value for name, value in given.items() if value is not None}
    values: dict[str, object] = {**PRESETS[preset]} if preset is not None else {}
    if "rate" in flags or "arrival" in flags:
        values.pop("concurrency", None)
        flags["arrival"] = Arrival(str(flags.get("arrival", Arrival.POISSON)))
    elif "concurrency" not in flags:
        values.setdefault("concurrency", PRESETS["concurrent-20"]["concurrency"])
    values.update(flags)
    if "num_requests" not in values and isinstance(concurrency := values.get("concurrency"), int):
        values["num_requests"] = max(8, 4 * concurrency)
    if "warmup" not in values:
        concurrency = values.get("concurrency", 8)
        values["warmup"] = min(concurrency, 10_000) if isinstance(concurrency, int) else 0
    return LoadPlan(**values)  # type: ignore[arg-type]  # checked by __post_init__


def _within(flag: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise PlanError(f"{flag} is {value}, it has to be from {least} to {most}")
