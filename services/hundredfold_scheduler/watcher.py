"""Makes logs, metrics and spans of what the core tells its observer."""

from __future__ import annotations

from hundredfold.telemetry import (
    RequestSpan,
    ServiceMetrics,
    get_logger,
    names,
    recording,
    start_request_span,
    step_span,
)
from hundredfold_scheduler.core.failures import Code, Failure
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.request import Request, Sequence
from hundredfold_scheduler.core.step import EndReason, StepPlan, StepResult

log = get_logger(__name__)


class Watcher(Observer):
    """Spans are kept only while they are recorded somewhere."""

    def __init__(self, metrics: ServiceMetrics) -> None:
        self._metrics = metrics
        self._spans: dict[int, RequestSpan] = {}
        """By sequence number, of live requests."""

    def submitted(self, request: Request) -> None:
        """Open the request's span between the door's and the worker's."""
        if not recording():
            return
        submission = request.submission
        span = start_request_span(
            "schedule",
            submission.traceparent,
            {
                names.RESPONSE_ID: submission.request_id,
                names.USAGE_INPUT_TOKENS: len(submission.prompt),
                names.REQUEST_MAX_TOKENS: submission.max_tokens,
            },
        )
        self._spans[request.lead.number] = span
        request.traceparent = span.traceparent or submission.traceparent

    def rejected(self, reason: str, failure: Failure) -> None:
        """Count by reason."""
        self._metrics.rejected(reason)
        log.debug("request refused", reason=reason, status=failure.code, message=failure.message)

    def admitted(self, sequence: Sequence, cached_tokens: int) -> None:
        """The end of the queue."""
        span = self._spans.get(sequence.number)
        if span is not None:
            span.event("admitted", {"cached_tokens": cached_tokens, "tokens": sequence.total})

    def first_token(self, request: Request, now: float) -> None:
        """The end of the prefill."""
        span = self._spans.get(request.lead.number)
        if span is not None:
            span.event("first token")

    def preempted(self, sequence: Sequence, lost_tokens: int, free_blocks: int) -> None:
        """Worth a line each: an operator who sees many wants a larger cache."""
        self._metrics.preempted()
        log.info(
            "preempted",
            request_id=sequence.request.request_id,
            lost_tokens=lost_tokens,
            free_blocks=free_blocks,
            times=sequence.preemptions + 1,
        )
        span = self._spans.get(sequence.number)
        if span is not None:
            span.event("preempted", {"lost_tokens": lost_tokens, "free_blocks": free_blocks})

    def replayed(self, sequence: Sequence) -> None:
        """The worker died under it."""
        log.warning(
            "request is replayed",
            request_id=sequence.request.request_id,
            output_tokens=sequence.num_output,
            worker_deaths=sequence.deaths,
            alone=sequence.solo,
        )
        span = self._spans.get(sequence.number)
        if span is not None:
            span.event("replayed", {"worker_deaths": sequence.deaths})

    def planned(self, plan: StepPlan, rows: list[Sequence]) -> None:
        """A step's span and those of its requests link to each other: a batch has many parents."""
        if not self._spans:
            return
        attributes = {"step": plan.step, "rows": len(rows), "tokens": sum(plan.num_tokens)}
        with step_span("plan", [row.request.traceparent for row in rows], attributes) as step:
            for row in rows:
                span = self._spans.get(row.number)
                if span is not None:
                    span.link(step)

    def stepped(self, result: StepResult, computed_tokens: int, recomputed_tokens: int) -> None:
        """The worker's own time for the step."""
        self._metrics.step(result.step_us / 1e6, computed_tokens, recomputed_tokens)
        if result.num_drafted_tokens:
            self._metrics.drafted(sum(result.num_drafted_tokens), result.num_accepted_tokens)

    def finished(self, request: Request, reason: EndReason, now: float) -> None:
        """Close the span."""
        span = self._spans.pop(request.lead.number, None)
        if span is not None:
            span.set(
                {
                    names.RESPONSE_FINISH_REASONS: (reason.name.lower(),),
                    names.USAGE_OUTPUT_TOKENS: request.num_output,
                    names.USAGE_CACHED_TOKENS: request.lead.cached_tokens,
                }
            )
            span.end()

    def failed(self, request: Request, failure: Failure, now: float) -> None:
        """Close the span with the status; log what is no caller's fault."""
        if failure.code == Code.INTERNAL:
            log.error("request failed", request_id=request.request_id, message=failure.message)
        span = self._spans.pop(request.lead.number, None)
        if span is not None:
            span.end(_status_name(failure.code))

    def dropped(self, request: Request, now: float) -> None:
        """Its client went away."""
        self._metrics.aborted()
        span = self._spans.pop(request.lead.number, None)
        if span is not None:
            span.end("CANCELLED")


def _status_name(code: int) -> str:
    try:
        return Code(code).name
    except ValueError:
        return str(code)
