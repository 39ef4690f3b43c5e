"""What the supervisor has to know of one child."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One service to run.

    Attributes:
        name: What it is called in messages.
        command: Program and arguments.
        address: Where its grpc.health.v1 service answers.
        environment: Variables that it gets on top of the supervisor's.
        stop_s: Seconds from SIGTERM to SIGKILL.
        replicated: Others do the same work: when it was asked to stop, it alone is started again.
    """

    name: str
    command: tuple[str, ...]
    address: str
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_s: float = 10.0
    replicated: bool = False
