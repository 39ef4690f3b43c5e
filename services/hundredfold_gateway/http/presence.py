"""Runs work for a client as long as it is there and the service goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from hundredfold_gateway.errors import stopping

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection: nobody waits for the answer."""


async def while_there(receive: Receive, cut: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns. It is cancelled, and has ended, before one of the errors below is raised.

    Args:
        receive: The connection, its request body read.
        cut: Set when the service ends.
        work: What is done for the client.

    Raises:
        ClientGone: The client went away.
        ApiError: The service ends.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    cutting = asyncio.ensure_future(cut.wait())
    tasks: tuple[asyncio.Future[Any], ...] = (working, leaving, cutting)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if leaving.done():
            raise ClientGone
        raise stopping()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
