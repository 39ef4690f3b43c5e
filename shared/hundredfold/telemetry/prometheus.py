"""The metrics port: OpenTelemetry's Prometheus exporter on a registry and an HTTP server of our own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from hundredfold.config.address import TcpAddress, parse
from hundredfold.errors import StartError

SECONDS_EDGES = (
    *(0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64),
    *(1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
"""Bucket edges of every histogram. The conventions' own begin at 10 ms, where a step is over already."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """A meter, and where it can be scraped."""

    meter: Meter
    host: str
    port: int | None
    registry: CollectorRegistry

    @contextlib.contextmanager
    def serve(self) -> Iterator[None]:
        """Answer ``GET /metrics`` meanwhile. Raises ``StartError`` when the port cannot be had."""
        if self.port is None:
            raise ValueError("this scrape has no port")
        try:
            server, thread = start_http_server(self.port, self.host, registry=self.registry)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StartError(f"cannot serve metrics on {self.host}:{self.port}: {reason}") from None
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def text(self) -> bytes:
        """All metrics as they are now, in Prometheus' text format: ``CONTENT_TYPE_LATEST``."""
        return generate_latest(self.registry)


def open_scrape(service: str, listen: tuple[str, ...], port: int | None) -> Scrape:
    """Metrics of ``service``, on ``port`` of the host that its first TCP address names, if on any."""
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    edges = View(
        instrument_type=Histogram, aggregation=ExplicitBucketHistogramAggregation(boundaries=SECONDS_EDGES)
    )
    resource = Resource.create({"service.name": f"hundredfold-{service}"})
    provider = MeterProvider([reader], resource, views=[edges], shutdown_on_exit=False)
    tcp = [a for a in map(parse, listen) if isinstance(a, TcpAddress)]
    return Scrape(provider.get_meter("hundredfold"), tcp[0].host if tcp else "127.0.0.1", port, registry)
