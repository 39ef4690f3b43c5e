"""Names of the requests in progress: each only once, and found by it for Abort."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from hundredfold.rpc import RequestError
from hundredfold_tokenizer.requests.running import RunningRequest

_RETRY_AFTER_S = 1.0


@dataclass(slots=True, eq=False)
class Ticket:
    """A request's place, from its arrival on, when there may be nothing to run yet.

    Attributes:
        running: The request, once it is submitted.
        aborted: Whether somebody asked to end it.
    """

    running: RunningRequest | None = None
    aborted: bool = False

    def abort(self) -> None:
        """End the request: its stream gets CANCELLED."""
        self.aborted = True
        if self.running is not None:
            self.running.fail(self.refusal())

    def check(self) -> None:
        """Go no further with a request that was aborted: CANCELLED."""
        if self.aborted:
            raise self.refusal()

    @staticmethod
    def refusal() -> RequestError:
        """What an aborted request ends with."""
        return RequestError(grpc.StatusCode.CANCELLED, "the request was aborted")


class Registry:
    """All requests in progress, by their public ids.

    Args:
        limit: Most requests at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tickets: dict[str, Ticket] = {}

    def __len__(self) -> int:
        """Requests in progress."""
        return len(self._tickets)

    @contextmanager
    def enter(self, request_id: str) -> Iterator[Ticket]:
        """Hold a request's name while it is in progress.

        Raises:
            RequestError: RESOURCE_EXHAUSTED when there are too many, ALREADY_EXISTS when the name is in use.
        """
        if len(self._tickets) >= self._limit:
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{len(self._tickets)} requests are in progress; the limit max_requests is {self._limit}",
                retry_after_s=_RETRY_AFTER_S,
            )
        if request_id in self._tickets:
            message = f"request_id = {request_id!r} is in use by a running request"
            raise RequestError(grpc.StatusCode.ALREADY_EXISTS, message, field="request_id")
        ticket = self._tickets[request_id] = Ticket()
        try:
            yield ticket
        finally:
            del self._tickets[request_id]

    def abort(self, request_id: str) -> RunningRequest | None:
        """End a request; returns it if it was running already.

        Raises:
            RequestError: NOT_FOUND.
        """
        ticket = self._tickets.get(request_id)
        if ticket is None:
            message = f"request_id = {request_id[:128]!r} names no running request"
            raise RequestError(grpc.StatusCode.NOT_FOUND, message, field="request_id")
        ticket.abort()
        return ticket.running
