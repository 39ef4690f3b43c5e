"""The engine: a step from plan to result on the device. It runs on the thread that loaded the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from hundredfold.telemetry import get_logger
from hundredfold_worker.engine.apply import apply_plan
from hundredfold_worker.engine.batch import send
from hundredfold_worker.engine.outcome import Outcome
from hundredfold_worker.engine.passes import Pass, split_passes
from hundredfold_worker.engine.plan import Ints, StepPlan, StepResult
from hundredfold_worker.engine.run_pass import PassRunner, StepTimes
from hundredfold_worker.engine.slots import EMPTY, RUNNING, EngineLimits, SlotTable
from hundredfold_worker.engine.speculation import Speculation
from hundredfold_worker.failures import BrokenPlan, FailureCode, FatalDeviceError, RequestFailure
from hundredfold_worker.model import LoadedModel, PagedCache

log = get_logger(__name__)


@dataclass(slots=True)
class EngineTotals:
    """Counted since the start."""

    steps: int = 0
    """Passes over the weights; a plan may ask for several."""
    computed_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    """Draft tokens that were tried."""
    accepted_tokens: int = 0
    """Output tokens that came beyond the first of their row and step: drafts that were right."""
    failed_sequences: int = 0
    gap_s: float = 0.0
    """Seconds between steps while sequences were running."""


class Engine:
    """Holds the sequences of one scheduler over one cache, and computes what its plans say."""

    def __init__(
        self,
        model: LoadedModel,
        cache: PagedCache,
        limits: EngineLimits,
        speculation: Speculation | None = None,
    ) -> None:
        self._speculation = speculation
        self._device = model.device
        self._cache = cache
        self._table = SlotTable(limits)
        self._runner = PassRunner(model, cache, self._table)
        self._last_step = 0
        self.totals = EngineTotals()
        self.newcomers_wait: Callable[[], bool] = lambda: False
        """Asked before a plan goes on: whether the next one brings sequences."""

    @property
    def before_kernels(self) -> Callable[[], None]:
        """Called before each forward: begins what others can do while kernels run."""
        return self._runner.before_kernels

    @before_kernels.setter
    def before_kernels(self, begin: Callable[[], None]) -> None:
        self._runner.before_kernels = begin

    @property
    def limits(self) -> EngineLimits:
        """What plans have to keep to."""
        return self._table.limits

    @property
    def num_live(self) -> int:
        """Sequences that go on."""
        return self._table.num_live

    @property
    def times(self) -> StepTimes:
        """Where the time of all steps went."""
        return self._runner.times

    def reset(self) -> None:
        """Forget every sequence; the next plan is step 1."""
        if self._speculation is not None:
            self._speculation.forget(np.flatnonzero(self._table.state != EMPTY))
        self._table.clear()
        self._last_step = 0

    def step(self, plan: StepPlan, idle_us: int = 0) -> StepResult:
        """Compute a plan.

        Raises:
            BrokenPlan: the plan cannot be carried out; the engine needs a ``reset``.
            FatalDeviceError: the device is lost.
        """
        started = time.perf_counter()
        if plan.step != self._last_step + 1:
            raise BrokenPlan(f"step is {plan.step}, the one after {self._last_step} was expected")
        self._last_step = plan.step
        with torch.inference_mode():
            apply_plan(self._table, plan)
            if self._speculation is not None and len(plan.released_slots):
                self._speculation.forget(plan.released_slots)
            if len(plan.copy_sources):
                self._cache.copy_blocks(
                    send(plan.copy_sources, self._device), send(plan.copy_destinations, self._device)
                )
            outcome = self._compute(plan)
        self.totals.steps += max(1, outcome.num_passes)
        elapsed = time.perf_counter() - started
        self._runner.times.total_s += elapsed
        result = outcome.result(round(elapsed * 1e6), idle_us)
        self.totals.output_tokens += len(result.token_ids)
        if len(result.num_drafted):
            self.totals.drafted_tokens += int(result.num_drafted.sum())
            self.totals.accepted_tokens += result.num_accepted
        self.totals.failed_sequences += len(result.failures)
        return result

    def _compute(self, plan: StepPlan) -> Outcome:
        table = self._table
        outcome = Outcome(plan, table)
        for slot, fault in list(table.faults.items()):
            rows = np.flatnonzero(plan.slots == slot)
            if len(rows):
                outcome.failed(int(rows[0]), fault)
                del table.faults[slot]
        left = plan.num_tokens.copy()
        while outcome.num_passes <= plan.num_repeats and not (outcome.num_passes and self.newcomers_wait()):
            rows = np.flatnonzero((table.state[plan.slots] == RUNNING) & (left > 0))
            if not len(rows):
                break
            slots = plan.slots[rows]
            takes = np.minimum(left[rows], table.length[slots] - table.computed[slots])
            left[rows] -= takes
            allowed = plan.num_draft_tokens[rows] if len(plan.num_draft_tokens) else None
            outcome.begin_pass()
            if self._advance(Pass(rows, slots, takes, np.zeros_like(takes)), allowed, outcome):
                break
        return outcome

    def _advance(self, whole: Pass, allowed: Ints | None, outcome: Outcome) -> bool:
        """Compute the rows of a pass, and at most ``allowed`` int64[n] drafts behind them; whether there were
        drafts.
        """
        table, speculation = self._table, self._speculation
        if speculation is not None and allowed is not None:
            whole = replace(whole, drafts=speculation.draft(table, whole.slots, whole.takes, allowed))
        self.totals.computed_tokens += int(whole.takes.sum() + whole.drafts.sum())
        begun = time.perf_counter()
        for part in split_passes(whole, table):
            self._run(part, outcome)
        if speculation is not None and allowed is not None:
            speculation.learn(table, time.perf_counter() - begun)
        return bool(whole.drafts.any())

    def _run(self, part: Pass, outcome: Outcome) -> None:
        """Run a pass; when it fails, try it without drafts, then halve it until the rows at fault are alone.
        Rows that had advanced by then keep what they have, and go on with the next step.
        """
        part = part.living(self._table)
        if not len(part.rows):
            return
        before = self._table.computed[part.slots]
        try:
            self._runner.run(part, outcome)
        except Exception as error:
            if isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError):
                raise FatalDeviceError(f"the device failed: {error}") from error
            self._isolate(part.chosen(self._table.computed[part.slots] == before), outcome, error)

    def _isolate(self, part: Pass, outcome: Outcome, error: Exception) -> None:
        out_of_memory = _is_out_of_memory(error)
        if out_of_memory and self._device.type == "cuda":
            torch.cuda.empty_cache()
        if part.drafts.any() or not len(part.rows):
            log.warning("a step with drafts failed", rows=len(part.rows), error=_kind(error))
            self._run(replace(part, drafts=np.zeros_like(part.drafts)), outcome)
            return
        if len(part.rows) > 1:
            log.warning("a step failed, its rows are tried apart", rows=len(part.rows), error=_kind(error))
            half = len(part.rows) // 2
            self._run(part.chosen(slice(half)), outcome)
            self._run(part.chosen(slice(half, None)), outcome)
            return
        slot = int(part.slots[0])
        log.exception("a sequence failed", sequence=int(self._table.sequence_id[slot]), error=_kind(error))
        outcome.failed(int(part.rows[0]), _describe(error, out_of_memory, int(part.takes[0])))


def _is_out_of_memory(error: Exception) -> bool:
    """torch has no exception of its own for a CPU allocation that failed."""
    told = ("can't allocate memory", "not enough memory", "cannot allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        t in str(error).lower() for t in told
    )


def _describe(error: Exception, out_of_memory: bool, num_tokens: int) -> RequestFailure:
    if out_of_memory:
        return RequestFailure(
            FailureCode.RESOURCE_EXHAUSTED,
            f"the worker has no memory for {num_tokens} tokens of this request, even alone",
        )
    return RequestFailure(FailureCode.INTERNAL, f"computing this request failed: {_kind(error)}")


def _kind(error: Exception) -> str:
    """The kind alone: an error's text may quote what no client should see."""
    return type(error).__name__
