"""Spans of calls, requests and steps; without an endpoint the context only passes through."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from hundredfold.telemetry.context import attached, extract, inject_span

if TYPE_CHECKING:
    from hundredfold.config import ServiceSettings

_TRACER = "hundredfold"
_MAX_LINKS = 128

Attributes = Mapping[str, str | int | float | bool | tuple[str, ...]]


def configure_tracing(settings: ServiceSettings, service: str) -> Callable[[], None]:
    """Send this process's spans to ``settings.otlp_endpoint``; nothing when it is unset.

    Returns what to call at the end, which sends the rest. OpenTelemetry keeps one provider per process.
    """
    if settings.otlp_endpoint is None:
        return lambda: None
    # Imported here: the exporter takes a third of a second and most processes never trace.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    insecure = not settings.otlp_endpoint.startswith("https://")
    provider = TracerProvider(resource=Resource.create({"service.name": f"hundredfold-{service}"}))
    exporter = OTLPSpanExporter(endpoint=settings.otlp_endpoint, insecure=insecure, timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def recording() -> bool:
    """Whether spans go anywhere; what only feeds spans can be left out otherwise."""
    return hasattr(trace.get_tracer_provider(), "add_span_processor")


@contextlib.contextmanager
def call_span(method: str, metadata: Any, *, lasting: bool) -> Iterator[Span]:
    """The span of one incoming call, child of what its metadata names. A lasting stream passes on no span."""
    traceparent = next((str(value) for key, value in metadata or () if key == "traceparent"), "")
    context = extract(traceparent)
    if lasting or not recording():
        with attached(context):
            yield trace.get_current_span(context)
        return
    service, _, name = method.strip("/").partition("/")
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
    span = trace.get_tracer(_TRACER).start_span(method.strip("/"), context, SpanKind.SERVER, attributes)
    with attached(trace.set_span_in_context(span, context)):
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            span.end()


class RequestSpan:
    """One request's span in one service, open while the request lives there, whatever task works on it."""

    __slots__ = ("_links", "_span")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._links = 0

    @property
    def traceparent(self) -> str:
        """To send along, so that the next service's spans are children of this one; may be empty."""
        return inject_span(self._span)

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        self._span.set_attributes(dict(attributes))

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Something that happened to the request at one moment, such as its preemption."""
        self._span.add_event(name, dict(attributes or {}))

    def link(self, step: Span) -> None:
        """A step worked on this request. Only the first steps are linked: spans hold no more."""
        if self._links < _MAX_LINKS and step.is_recording():
            self._links += 1
            self._span.add_link(step.get_span_context())

    def end(self, error_type: str | None = None) -> None:
        """The request is over here; ``error_type`` names a status code or exception class when it failed."""
        if error_type is not None:
            self._span.set_attribute("error.type", error_type)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def start_request_span(name: str, traceparent: str, attributes: Attributes | None = None) -> RequestSpan:
    """Open a request's span as a child of what ``traceparent`` names."""
    tracer = trace.get_tracer(_TRACER)
    return RequestSpan(tracer.start_span(name, extract(traceparent), attributes=dict(attributes or {})))


def step_span(
    name: str, traceparents: Iterable[str], attributes: Attributes | None = None
) -> AbstractContextManager[Span]:
    """The span of one step, linked to the requests it works on: a batch has many parents."""
    if not recording():
        return contextlib.nullcontext(trace.INVALID_SPAN)
    links: list[Link] = []
    for traceparent in traceparents:
        context = trace.get_current_span(extract(traceparent)).get_span_context()
        if context.is_valid and len(links) < _MAX_LINKS:
            links.append(Link(context))
    tracer = trace.get_tracer(_TRACER)
    return tracer.start_as_current_span(
        name, context=extract(""), kind=SpanKind.INTERNAL, attributes=dict(attributes or {}), links=links
    )
