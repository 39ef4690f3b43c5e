"""Hands what one scheduler message says to its requests; a fault ends only the request it concerns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVarTuple

import grpc

from hundredfold.internal.v1 import scheduler_pb2
from hundredfold.rpc import RequestError
from hundredfold.telemetry import get_logger
from hundredfold_tokenizer.requests.choice import RunningChoice
from hundredfold_tokenizer.requests.running import RunningRequest

log = get_logger(__name__)

Given = TypeVarTuple("Given")


class BadMessage(Exception):
    """The scheduler's message does not fit together; nothing it says can be trusted."""


Stopped = tuple[RunningRequest, RunningChoice]
"""A choice whose text ended by a stop string, with its request."""


def deliver(outputs: scheduler_pb2.Outputs, live: Mapping[int, RunningRequest]) -> list[Stopped]:
    """Give every row to its request; returns the choices whose text ended by a stop string and that are not
    finished yet.

    Rows of requests that are not live (cancelled meanwhile) are dropped.

    Raises:
        BadMessage: The packed lists do not fit together.
    """
    rows = len(outputs.stream_ids)
    indexes = outputs.indexes
    token_ids = list(outputs.token_ids)
    if (
        len(outputs.counts) != rows
        or len(outputs.offsets) != rows
        or (indexes and len(indexes) != rows)
        or sum(outputs.counts) != len(token_ids)
    ):
        raise BadMessage(f"{rows} rows with {len(outputs.counts)} counts of {len(token_ids)} ids")
    for scored in outputs.scores:
        request = live.get(scored.stream_id)
        if request is not None:
            _give(request, request.take_scores, scored.index, scored.scores)
    now = time.monotonic()
    matched: list[Stopped] = []
    start = 0
    for row, (stream_id, count, offset) in enumerate(
        zip(outputs.stream_ids, outputs.counts, outputs.offsets, strict=True)
    ):
        end = start + count
        request = live.get(stream_id)
        if request is not None:
            try:
                stopped = request.take_tokens(
                    indexes[row] if indexes else 0, offset, token_ids[start:end], now
                )
                if stopped is not None:
                    matched.append((request, stopped))
            except Exception as error:
                _fault(request, error)
        start = end
    for done in outputs.finished:
        request = live.get(done.stream_id)
        if request is not None:
            _give(request, request.take_finish, done)
    for failed in outputs.failed:
        request = live.get(failed.stream_id)
        if request is not None:
            _give(request, request.take_failure, failed.failure)
    return [pair for pair in matched if not pair[0].ended and pair[1].finished is None]


def _give(request: RunningRequest, take: Callable[[*Given], None], *given: *Given) -> None:
    """Call a method of ``request`` with what was sent."""
    try:
        take(*given)
    except Exception as error:
        _fault(request, error)


def _fault(request: RunningRequest, error: Exception) -> None:
    """What one row holds may not be what it should; that is this request's end and nobody else's."""
    request_id = request.request.envelope.request_id
    if isinstance(error, ValueError):
        log.warning("the scheduler's output cannot be used", request_id=request_id, error=str(error))
    else:
        log.exception("a request's output could not be handled", request_id=request_id)
    request.fail(
        RequestError(grpc.StatusCode.INTERNAL, "the scheduler's output for this request cannot be used")
    )
