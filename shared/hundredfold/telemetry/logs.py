"""Structured logs: an event and its values, as lines for people or as JSON; never prompts or outputs."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from hundredfold.telemetry.context import current_trace_id

if TYPE_CHECKING:
    from hundredfold.config import ServiceSettings

_VALUES = "hundredfold_values"
_MAX_CHARS = 500
_PRIVATE = frozenset(
    {
        "prompt",
        "text",
        "messages",
        "content",
        "output",
        "outputs",
        "completion",
        "token_ids",
        "prompt_ids",
        "output_ids",
        "stop",
    }
)
"""Names under which what a user wrote or got would stand: their values are never logged."""

_COLOURS = {logging.DEBUG: "2", logging.INFO: "36", logging.WARNING: "33", logging.ERROR: "31"}


class StructuredLogger:
    """Logs an event's name and values by keyword: ``log.info("worker lost", worker=name, requests=3)``."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **values: object) -> None:
        """Detail for whoever looks for a fault."""
        self._log(logging.DEBUG, event, values)

    def info(self, event: str, /, **values: object) -> None:
        """Something that happened as it should."""
        self._log(logging.INFO, event, values)

    def warning(self, event: str, /, **values: object) -> None:
        """Something that an operator may want to change."""
        self._log(logging.WARNING, event, values)

    def error(self, event: str, /, **values: object) -> None:
        """Something that failed."""
        self._log(logging.ERROR, event, values)

    def exception(self, event: str, /, *, raised: BaseException | None = None, **values: object) -> None:
        """Something that failed, with the traceback of ``raised``, or of the exception being handled."""
        self._log(logging.ERROR, event, values, exc_info=raised or True)

    def _log(
        self, level: int, event: str, values: Mapping[str, object], exc_info: bool | BaseException = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={_VALUES: values}, exc_info=exc_info)


def get_logger(name: str) -> StructuredLogger:
    """A structured logger; ``name`` is the module's."""
    return StructuredLogger(logging.getLogger(name))


def configure_logging(settings: ServiceSettings, stream: TextIO | None = None) -> None:
    """Send this process's logs to ``stream`` (standard error), in format and from level of the settings."""
    target = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(target)
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter(settings.config_section))
    else:
        handler.setFormatter(TextFormatter(colour=target.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for ours in (
        "hundredfold",
        *(f"hundredfold_{room}" for room in ("tokenizer", "scheduler", "worker", "gateway")),
    ):
        logging.getLogger(ours).setLevel(settings.log_level.upper())


class TextFormatter(logging.Formatter):
    """``12:03:55.123 info  hundredfold.rpc listening address=127.0.0.1:50051``."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it if there is one."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created)) + f".{int(record.msecs):03d}"
        level = f"{record.levelname.lower():<7}"
        if self._colour:
            level = f"\x1b[{_COLOURS.get(record.levelno, '0')}m{level}\x1b[0m"
        values = "".join(f" {key}={_one_line(value)}" for key, value in _values(record).items())
        line = f"{clock} {level} {record.name}: {_printable(record.getMessage())}{values}"
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, service, event, then the values."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the values hold."""
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "service": self._service,
            "event": _cut(record.getMessage()),
        }
        trace_id = current_trace_id()
        if trace_id is not None:
            fields["trace_id"] = trace_id
        for key, value in _values(record).items():
            plain = isinstance(value, bool | int | float) or value is None
            fields[key if key not in fields else f"{key}_"] = value if plain else _cut(str(value))
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def _values(record: logging.LogRecord) -> dict[str, object]:
    values: Mapping[str, object] = getattr(record, _VALUES, {})
    return {key: "<not logged>" if key in _PRIVATE else value for key, value in values.items()}


def _one_line(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = _cut(str(value))
    return (
        text
        if text and text.isprintable() and not set(text) & set(' "=')
        else json.dumps(text, ensure_ascii=True)
    )


def _printable(text: str) -> str:
    cut = _cut(text)
    return cut if cut.isprintable() else json.dumps(cut)[1:-1]


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}… ({len(text)} characters)"
