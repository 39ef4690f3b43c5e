"""Logs, spans and metrics: off or silent unless asked for, and never with what a user wrote or got."""

from hundredfold.telemetry.context import current_trace_id, extract, inject
from hundredfold.telemetry.logs import StructuredLogger, configure_logging, get_logger
from hundredfold.telemetry.metrics import FinishedRequest, LoadSample, ServiceMetrics
from hundredfold.telemetry.tracing import (
    RequestSpan,
    configure_tracing,
    recording,
    start_request_span,
    step_span,
)

__all__ = [
    "FinishedRequest",
    "LoadSample",
    "RequestSpan",
    "ServiceMetrics",
    "StructuredLogger",
    "configure_logging",
    "configure_tracing",
    "current_trace_id",
    "extract",
    "get_logger",
    "inject",
    "recording",
    "start_request_span",
    "step_span",
]
