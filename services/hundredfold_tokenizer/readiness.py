"""Whether the door can take requests, and why not; short losses of a neighbour are borne."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hundredfold_tokenizer.requests.attachment import Link


class Readiness:
    """Follows the link to the scheduler. Belongs to the event loop.

    Args:
        publish: Told whether the door is ready, and why not.
        grace_s: How long a loss is borne.
        scheduler: Its address, for messages.
    """

    def __init__(self, publish: Callable[[bool, str], None], grace_s: float, scheduler: str) -> None:
        self._publish = publish
        self._grace_s = grace_s
        self._scheduler = scheduler
        self._was_ready = False
        self._timer: asyncio.TimerHandle | None = None
        self._trouble = "starting"

    def follow(self, link: Link) -> None:
        """The link has changed."""
        if link.attached and link.worker_ready:
            self._cancel()
            self._was_ready = True
            self._publish(True, "")
            return
        self._trouble = _trouble(link, self._scheduler)
        if link.refusal or not self._was_ready:
            self._cancel()
            self._give_up()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        self._was_ready = False
        self._publish(False, self._trouble)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _trouble(link: Link, scheduler: str) -> str:
    if link.refusal:
        return link.refusal
    if not link.attached:
        return f"the scheduler at {scheduler} cannot be reached"
    return "the scheduler has no worker that is ready"
