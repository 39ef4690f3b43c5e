"""Climbs the ladder: every stage in order, each on the best settings so far, within a time that is given."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from hundredfold.bench.ceilings import Ceilings, CeilingsError, keep, measure_ceilings
from hundredfold.bench.ladder.measure import measure_row
from hundredfold.bench.ladder.naive import LOAD_TITLE, NaiveFailed, measure_naive
from hundredfold.bench.ladder.rows import Ladder, Row, tokens_of
from hundredfold.bench.ladder.stages import (
    FLOAT,
    INPUT_LEN,
    Load,
    NaiveStage,
    Scale,
    Stage,
    merged,
    naive_stages,
    stages,
)
from hundredfold.bench.plan import PlanError
from hundredfold.bench.processes import ClientProcessError
from hundredfold.bench.serve import WarmupError
from hundredfold.bench.server import ServerError
from hundredfold.bench.stack import RunningStack, StackError, StackOptions, known_settings, running_stack
from hundredfold.supervisor.cores import usable_cores

MEASURE_ERRORS = (StackError, ServerError, WarmupError, ClientProcessError, PlanError)
"""What a load may fail of: it costs its row, not the ladder."""


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """What to climb."""

    model: str
    scale: Scale
    minutes: float
    """Loads that would begin later are left out, and say so."""
    baseline: bool = True
    baseline_python: Path | None = None
    only: frozenset[str] = frozenset()
    """Keys of the stages to measure; all when empty."""


class Watcher(Protocol):
    """Is told where the ladder stands."""

    def total(self, rows: int) -> None:
        """So many rows there will be."""

    def begin(self, what: str, tokens: int) -> None:
        """A row begins, of so many output tokens; 0 when nobody counts them."""

    def tokens(self, done: int) -> None:
        """So many of them have come."""

    def row(self, row: Row) -> None:
        """A row is done."""


@dataclass(slots=True)
class _Base:
    """The best settings so far; floats before any, so that a stage measured alone stands on them too."""

    settings: Mapping[str, str] = field(default_factory=lambda: FLOAT)
    arithmetic: str = "float"
    speed: float = 0.0


class _Stacks:
    """The running services: kept from one stage to the next when their settings are the same."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._options: StackOptions | None = None
        self._held = ExitStack()
        self._running: RunningStack | None = None

    def get(self, settings: Mapping[str, str], workers: int) -> RunningStack:
        """Services with these settings. Raises StackError."""
        options = StackOptions(self._model, dict(settings), workers)
        if self._running is None or options != self._options:
            self.close()
            self._running = self._held.enter_context(running_stack(options))
            self._options = options
        return self._running

    def close(self) -> None:
        """Stop what runs."""
        self._running = None
        self._held.close()


class Climb:
    """One ladder."""

    def __init__(self, options: LadderOptions, watch: Watcher) -> None:
        self._options = options
        self._watch = watch
        self._begun = time.monotonic()
        self._ceilings: Ceilings | None = None
        self._base = _Base()
        self._stacks = _Stacks(options.model)
        self._notes: list[str] = []
        self._rows: list[Row] = []

    def run(self) -> Ladder:
        """Measure it all; Ctrl-C ends it with what there is."""
        chosen = [stage for stage in stages(self._options.scale) if self._wanted(stage.key)]
        naive = [stage for stage in naive_stages() if self._wanted(stage.key)]
        naive = naive if self._options.baseline else []
        self._watch.total(len(naive) + sum(len(stage.loads) for stage in chosen))
        try:
            self._measure_machine()
            for row in self._all_rows(naive, chosen):
                self._rows.append(row)
                self._watch.row(row)
        except KeyboardInterrupt:
            self._notes.append("interrupted: the rows after the last one were not measured")
        finally:
            self._stacks.close()
        return self._ladder()

    def _wanted(self, key: str) -> bool:
        return not self._options.only or key in self._options.only

    def _measure_machine(self) -> None:
        self._watch.begin("what this machine can do", 0)
        try:
            self._ceilings = measure_ceilings()
            keep(self._ceilings)
        except CeilingsError as error:
            self._notes.append(f"no shares of the machine's ceilings: {error}")
        except OSError as error:
            self._notes.append(f"the machine's ceilings could not be kept for later: {error}")

    def _all_rows(self, naive: list[NaiveStage], chosen: list[Stage]) -> Iterator[Row]:
        for naive_stage in naive:
            self._watch.begin(naive_stage.title, 0)
            yield self._naive_row(naive_stage)
        for stage in chosen:
            yield from self._stage_rows(stage)

    def _naive_row(self, stage: NaiveStage) -> Row:
        options = self._options
        try:
            return measure_naive(stage, options.model, options.scale, options.baseline_python, self._ceilings)
        except NaiveFailed as failure:
            return Row(stage.key, stage.title, LOAD_TITLE, reason=str(failure))

    def _stage_rows(self, stage: Stage) -> Iterator[Row]:
        settings = merged(self._base.settings, stage)
        arithmetic = stage.arithmetic or self._base.arithmetic
        unknown = [name for name in settings if not _known(name)]
        if stage.alone:
            settings = {name: value for name, value in settings.items() if name not in unknown}
            unknown = []
        why = _refusal(stage, unknown)
        rows: list[Row] = []
        for load in stage.loads:
            late = self._late()
            if why or late:
                row = Row(stage.key, stage.title, load.title, settings, reason=why or late)
            else:
                row = self._measured(stage, load, settings, arithmetic)
                if row.reason and not any(map(tokens_of, rows)):
                    why = row.reason  # the services did not start: nor will they for the next load
            rows.append(row)
            yield row
        speed = tokens_of(rows[-1])
        if stage.kept and not why and speed > self._base.speed:
            self._base = _Base(settings, arithmetic, speed if len(stage.loads) > 1 else 0.0)

    def _measured(self, stage: Stage, load: Load, settings: Mapping[str, str], arithmetic: str) -> Row:
        self._watch.begin(f"{stage.title} · {load.title}", load.output_tokens)
        try:
            stack = self._stacks.get(settings, stage.workers)
            return measure_row(stack, stage, load, settings, arithmetic, self._ceilings, self._watch.tokens)
        except MEASURE_ERRORS as error:
            return Row(stage.key, stage.title, load.title, settings, reason=str(error))

    def _late(self) -> str:
        minutes = self._options.minutes
        over = time.monotonic() - self._begun > 60 * minutes
        return f"not measured: the {minutes:g} minutes were over" if over else ""

    def _ladder(self) -> Ladder:
        first = next((row.tokens_per_s for row in self._rows if row.tokens_per_s), None)
        rows = [
            replace(row, ratio=row.tokens_per_s / first) if row.tokens_per_s and first else row
            for row in self._rows
        ]
        return Ladder(
            model=self._options.model,
            machine=machine(),
            ceilings=self._ceilings,
            rows=rows,
            seconds=time.monotonic() - self._begun,
            input_len=INPUT_LEN,
            output_len=self._options.scale.output_len,
            notes=self._notes,
        )


def _known(name: str) -> bool:
    service, _, setting = name.partition(".")
    return setting in known_settings(service)


def _refusal(stage: Stage, unknown: list[str]) -> str:
    if unknown:
        return f"this installation has no setting {', '.join(unknown)}"
    cores = usable_cores()
    if cores < stage.least_cores:
        return f"needs {stage.least_cores} cores, here are {cores}: the workers would share them"
    return ""


def machine(read: Callable[[], str] | None = None) -> str:
    """What the figures were measured on, in a line."""
    name = (read or _processor)()
    return f"{name}, {usable_cores()} cores"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
