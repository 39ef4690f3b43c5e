"""What is counted, traced and logged of each request; never what it said."""

from __future__ import annotations

import time

import grpc

from hundredfold.rpc import RequestError
from hundredfold.telemetry import (
    FinishedRequest,
    RequestSpan,
    ServiceMetrics,
    get_logger,
    names,
    start_request_span,
)
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.requests.running import RunningRequest
from hundredfold_tokenizer.validation.request import GenerationRequest

log = get_logger(__name__)

_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.NOT_FOUND: "unknown_model",
    grpc.StatusCode.ALREADY_EXISTS: "duplicate_id",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "full",
    grpc.StatusCode.UNAVAILABLE: "unavailable",
    grpc.StatusCode.UNIMPLEMENTED: "unsupported",
    grpc.StatusCode.FAILED_PRECONDITION: "no_template",
    grpc.StatusCode.CANCELLED: "aborted",
}


class Ledger:
    """Keeps the books of one door.

    Args:
        metrics: Where requests are counted.
        model: The served model's name.
    """

    def __init__(self, metrics: ServiceMetrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self.totals = dict.fromkeys(
            ("finished", "failed", "aborted", "rejected", "prompt_tokens", "output_tokens"), 0
        )
        """Counts since the start, for GetLoad."""

    def open_span(self, request: GenerationRequest, traceparent: str) -> RequestSpan:
        """The span of a request, from its submission to its end."""
        sampling = request.sampling
        return start_request_span(
            f"{request.operation} {self._model}",
            traceparent,
            {
                names.OPERATION: request.operation,
                names.PROVIDER: names.PROVIDER_NAME,
                names.REQUEST_MODEL: self._model,
                names.RESPONSE_ID: request.envelope.request_id,
                names.REQUEST_MAX_TOKENS: request.max_tokens,
                names.REQUEST_TEMPERATURE: sampling.temperature,
                names.REQUEST_TOP_P: sampling.top_p,
                names.REQUEST_TOP_K: sampling.top_k,
                names.USAGE_INPUT_TOKENS: len(request.prompt),
            },
        )

    def rejected(self, error: RequestError) -> None:
        """A request was refused at the door."""
        self.totals["rejected"] += 1
        self._metrics.rejected(_REFUSALS.get(error.code, "other"))

    def closed(self, running: RunningRequest) -> None:
        """A request is over, whichever way."""
        now = time.monotonic()
        error = running.error
        given_up = not running.ended or (error is not None and error.code is grpc.StatusCode.CANCELLED)
        outcome = "aborted" if given_up else "finished" if error is None else "failed"
        self.totals[outcome] += 1
        if given_up:
            self._metrics.aborted()
        else:
            self._count(running, now)
        self._end_span(running, None if outcome == "finished" else error.code.name if error else "CANCELLED")
        log.debug(
            "request over",
            request_id=running.request.envelope.request_id,
            outcome=outcome if error is None else error.code.name,
            prompt_tokens=len(running.request.prompt),
            output_tokens=running.num_tokens,
            duration_s=now - running.arrived,
        )

    def _count(self, running: RunningRequest, now: float) -> None:
        finished, error = running.finished, running.error
        self.totals["prompt_tokens"] += len(running.request.prompt)
        self.totals["output_tokens"] += running.num_tokens
        first = running.first_token_at
        self._metrics.finished(
            FinishedRequest(
                model=self._model,
                operation=running.request.operation,
                duration_s=now - running.arrived,
                prompt_tokens=len(running.request.prompt),
                output_tokens=running.num_tokens,
                cached_tokens=running.usage.cached_tokens,
                time_to_first_token_s=None if first is None else first - running.arrived,
                queue_s=finished[0].timings.queue.ToMicroseconds() / 1e6 if finished else None,
                priority=running.request.envelope.priority,
                error_type=None if error is None else error.code.name,
            )
        )

    def _end_span(self, running: RunningRequest, error_type: str | None) -> None:
        finished = running.finished
        running.span.set({names.USAGE_OUTPUT_TOKENS: running.num_tokens})
        if finished:
            running.span.set(
                {
                    names.RESPONSE_FINISH_REASONS: tuple(
                        "stop" if end.reason == pb.FINISH_REASON_STOP else "length" for end in finished
                    ),
                    names.USAGE_CACHED_TOKENS: running.usage.cached_tokens,
                }
            )
        running.span.end(error_type)
