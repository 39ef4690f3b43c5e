"""What the gateway measures: HTTP requests by route and status, and answers as the other services do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST

from hundredfold.client import Delta, Event, RequestFailed, Started
from hundredfold.config import ServiceSettings
from hundredfold.telemetry import FinishedRequest, ServiceMetrics, names
from hundredfold.telemetry.prometheus import open_scrape
from hundredfold_gateway.openai.usage import Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST

_METHODS = frozenset(("GET", "POST", "HEAD", "OPTIONS"))


class HttpMetrics:
    """All metrics of the gateway; always on, as ``/metrics`` is always there."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._scrape = open_scrape("gateway", settings.listen, settings.metrics_port)
        self.service = ServiceMetrics("gateway", settings, self._scrape)
        meter = self._scrape.meter
        self._duration = meter.create_histogram(names.HTTP_DURATION, "s", "Arrival to the last byte")
        self._active = meter.create_up_down_counter(names.HTTP_ACTIVE, description="Requests in progress")

    def text(self) -> bytes:
        """For Prometheus."""
        return self._scrape.text()

    @contextlib.contextmanager
    def active(self, method: str) -> Iterator[None]:
        """A request in progress."""
        labels = {names.HTTP_METHOD: _method(method)}
        self._active.add(1, labels)
        try:
            yield
        finally:
            self._active.add(-1, labels)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request is over."""
        labels: dict[str, str | int] = {
            names.HTTP_METHOD: _method(method),
            names.HTTP_ROUTE: route,
            names.HTTP_STATUS: status,
        }
        self._duration.record(seconds, labels)


class AnswerMeter:
    """Measures one answer, as ``with``: what it took, and how it ended.

    Args:
        metrics: Where it is counted.
        operation: ``chat`` or ``text_completion``.
        arrived: When the request came, on the monotonic clock.
    """

    def __init__(self, metrics: ServiceMetrics, operation: str, arrived: float) -> None:
        self.usage = Usage()
        self._metrics = metrics
        self._operation = operation
        self._arrived = arrived
        self._model = ""
        self._first_s: float | None = None
        self._failure: RequestFailed | None = None
        self._complete = False

    def take(self, prompt: int, event: Event) -> None:
        """An event of the answer."""
        self.usage.take(prompt, event)
        if isinstance(event, Started):
            self._model = event.model
        elif self._first_s is None and isinstance(event, Delta) and event.token_ids:
            self._first_s = time.monotonic() - self._arrived

    def complete(self) -> None:
        """All has been read."""
        self._complete = True

    def failed(self, failure: RequestFailed) -> None:
        """The answer broke off."""
        self._failure = failure

    def __enter__(self) -> AnswerMeter:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._complete and self._failure is None:
            self._metrics.aborted()
            return
        if self._failure is not None and not self._model:
            self._metrics.rejected(self._failure.code.name.lower())
            return
        self._metrics.finished(
            FinishedRequest(
                model=self._model,
                operation=self._operation,
                duration_s=time.monotonic() - self._arrived,
                prompt_tokens=self.usage.prompt_tokens,
                output_tokens=self.usage.completion_tokens,
                cached_tokens=self.usage.cached_tokens,
                time_to_first_token_s=self._first_s,
                error_type=None if self._failure is None else self._failure.code.name,
            )
        )


def _method(method: str) -> str:
    """Clients may call any word a method; a label holds few."""
    return method if method in _METHODS else "_OTHER"
