"""Logs, spans and metrics: off or silent unless asked for, and never with what a user wrote or got."""

from hundredfold.telemetry.context import current_trace_id, extract, inject
from hundredfold.telemetry.logs import StructuredLogger, configure_logging, get_logger

__all__ = ["StructuredLogger", "configure_logging", "current_trace_id", "extract", "get_logger", "inject"]
