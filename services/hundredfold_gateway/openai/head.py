"""What every object of one answer begins with."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from hundredfold.client import Finished
from hundredfold.v1 import generation_pb2 as pb

_REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


@dataclass(slots=True)
class Head:
    """One answer's identity.

    Attributes:
        prefix: ``chatcmpl`` or ``cmpl``.
        model: The model that answers, known once it has started.
        key: Unlike that of any other answer.
        created: Unix time in seconds.
    """

    prefix: str
    model: str = ""
    key: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An object of this answer."""
        return {
            "id": f"{self.prefix}-{self.key}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def finish_reason(finished: Finished) -> str | None:
    """As OpenAI names it; None for a choice that has not ended."""
    return _REASONS.get(finished.reason)


def stop_reason(finished: Finished) -> str | int | None:
    """What stopped it: a stop string or a token id."""
    which = finished.WhichOneof("matched")
    if which == "stop_string":
        return finished.stop_string
    return finished.stop_token_id if which == "stop_token_id" else None
