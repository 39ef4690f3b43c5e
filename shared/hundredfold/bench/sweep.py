"""Runs one load after another along a parameter, or over a grid of several, and keeps a record of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from types import MappingProxyType

from hundredfold.bench.plan import PRESETS, LoadPlan, PlanError, make_plan
from hundredfold.bench.processes import ClientProcessError
from hundredfold.bench.report import Report
from hundredfold.bench.serve import WarmupError, measure
from hundredfold.bench.server import ServerError

SWEPT = ("concurrency", "beam-width", "input-len", "output-len")
"""Flags whose values a sweep may list."""
MAX_POINTS = 64

Axes = Mapping[str, tuple[int, ...]]
"""Values by flag; the grid is all their combinations, the last axis fastest."""

SWEEPS: Mapping[str, Axes] = MappingProxyType(
    {
        "batch": {"concurrency": (1, 4, 16, 64)},
        "beam": {"concurrency": (1,), "beam-width": (1, 2, 4, 8)},
        "batch-and-beam": {"concurrency": (1, 4, 16), "beam-width": (1, 2, 4)},
    }
)
"""Sweeps that people ask for, chosen like a preset."""


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """One point, in the form that tables of speed have. What could not be measured is None."""

    device: str
    precision: str
    batch: int | None
    """Requests in flight; None in an open loop."""
    beam_width: int | None
    mean_latency_ms: float | None
    """Of whole requests."""
    tokens_per_s: float | None
    """Output tokens of all requests together."""
    peak_memory_bytes: int | None
    """All services together, highest since they started: along a sweep it can only grow."""
    error: str = ""
    """Why there are no figures, or what part of the requests failed of."""


@dataclass(frozen=True, slots=True)
class Point:
    """A plan and what came of it."""

    plan: LoadPlan
    record: SweepRecord
    report: Report | None
    """None when nothing could be measured."""


def parse_axes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Read ``concurrency=1,4,16`` and the like. Raises PlanError naming the text."""
    axes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        flag, _, listed = text.partition("=")
        if flag not in SWEPT:
            raise PlanError(f"--sweep {text}: '{flag}' cannot be swept, only {', '.join(SWEPT)}")
        if flag in axes:
            raise PlanError(f"--sweep {text}: {flag} is swept twice")
        try:
            values = tuple(int(value) for value in listed.split(","))
        except ValueError as error:
            raise PlanError(
                f"--sweep {text}: wanted are whole numbers with commas, such as {flag}=1,2,4"
            ) from error
        if len(set(values)) < len(values):
            raise PlanError(f"--sweep {text}: a value stands there twice")
        axes[flag] = values
    return axes


def choose_axes(preset: str | None, texts: Iterable[str], given: Mapping[str, object]) -> Axes:
    """What a preset and ``--sweep`` ask for together; a flag that is given holds a preset's axis still.

    Empty when nothing is swept. Raises PlanError.
    """
    asked = parse_axes(texts)
    for flag in asked:
        if given.get(flag.replace("-", "_")) is not None:
            raise PlanError(f"--{flag} is given and swept; give one of them")
    usual = SWEEPS.get(preset or "", {})
    return {**{flag: usual[flag] for flag in usual if given.get(flag.replace("-", "_")) is None}, **asked}


def make_plans(preset: str | None, axes: Axes, given: Mapping[str, object]) -> list[LoadPlan]:
    """The plan of each point, checked before the first is run. Raises PlanError."""
    names = [flag.replace("-", "_") for flag in axes]
    grid = list(product(*axes.values()))
    if len(grid) > MAX_POINTS:
        raise PlanError(f"--sweep asks for {len(grid)} points, the limit is {MAX_POINTS}")
    baseline = preset if preset in PRESETS else None
    return [make_plan(baseline, {**given, **dict(zip(names, values, strict=True))}) for values in grid]


def run_sweep(plans: Sequence[LoadPlan], progress: Callable[[str, int], None]) -> list[Point]:
    """Measure point by point. One that the server refuses is kept with its reason, and the next is run.

    Raises ServerError when the server cannot be asked at the first, and ValueError for a bad prompt file.
    """
    points: list[Point] = []
    for number, plan in enumerate(plans, 1):
        try:
            report = measure(plan, _placed(f"point {number} of {len(plans)}", progress))
        except (WarmupError, ClientProcessError, PlanError, ServerError) as error:
            if isinstance(error, ServerError) and not points:
                raise
            points.append(Point(plan, refused(plan, str(error)), None))
        else:
            points.append(Point(plan, record_of(plan, report), report))
    return points


def record_of(plan: LoadPlan, report: Report) -> SweepRecord:
    """A report in the form of a record; without a success its figures are None."""
    good = report.requests - report.failed
    failures = ", ".join(f"{count} × {status}" for status, count in report.failures.items())
    return SweepRecord(
        device=report.device,
        precision=report.precision,
        batch=plan.concurrency,
        beam_width=plan.beam_width,
        mean_latency_ms=report.latency_ms.mean,
        tokens_per_s=report.output_tokens_per_s if good else None,
        peak_memory_bytes=sum(report.peak_memory_bytes.values()) or None,
        error=" · ".join([failures, *report.failure_examples[:1]]) if report.failed else "",
    )


def refused(plan: LoadPlan, reason: str) -> SweepRecord:
    """The record of a point without a report."""
    return SweepRecord("unknown", "unknown", plan.concurrency, plan.beam_width, None, None, None, reason)


def to_json(points: Sequence[Point]) -> str:
    """One JSON object: ``records``, and ``reports`` with all figures, null where a point has none."""
    records = [asdict(point.record) for point in points]
    reports = [None if p.report is None else json.loads(p.report.to_json()) for p in points]
    return json.dumps({"records": records, "reports": reports}, indent=2, allow_nan=False)


def _placed(place: str, progress: Callable[[str, int], None]) -> Callable[[str, int], None]:
    """Progress that also says at which point."""
    return lambda phase, sent: progress(f"{place} · {phase}", sent)
