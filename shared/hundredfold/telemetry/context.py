"""The trace context of the running task, as text that can travel in a message."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_TRACEPARENT = "traceparent"
_MAX_CHARS = 64
_PROPAGATOR = TraceContextTextMapPropagator()


def inject() -> str:
    """The running task's trace context as W3C ``traceparent``, or an empty string when there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get(_TRACEPARENT, "")


def extract(traceparent: str) -> Context:
    """The context that a ``traceparent`` names; an empty context for an empty or malformed one."""
    if not traceparent or len(traceparent) > _MAX_CHARS:
        return Context()
    return _PROPAGATOR.extract({_TRACEPARENT: traceparent}, context=Context())


def current_trace_id() -> str | None:
    """The running task's trace id in hexadecimal, or ``None`` outside of any trace."""
    span = trace.get_current_span(otel_context.get_current()).get_span_context()
    return f"{span.trace_id:032x}" if span.is_valid else None


def inject_span(span: trace.Span) -> str:
    """The ``traceparent`` that names this span, or an empty string when it belongs to no trace."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=trace.set_span_in_context(span, Context()))
    return carrier.get(_TRACEPARENT, "")


@contextlib.contextmanager
def attached(context: Context) -> Iterator[None]:
    """Make ``context`` the running task's."""
    token = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(token)
