"""What the tokenizer service can be told."""

from __future__ import annotations

import socket
from typing import Annotated, ClassVar

from pydantic import Field

from hundredfold.config import MIB, ServiceSettings
from hundredfold.models import DEFAULT_MODEL
from hundredfold.supervisor.cores import usable_cores

_DELTAS_PER_CORE = 100.0
"""A message takes a fifth of a millisecond of the machine, here and at the client, and as much again of a
worker on the same cores, whose threads wait for each other: a hundred a second cost a core a twenty-fifth.
"""


class TokenizerSettings(ServiceSettings):
    """The public door: text in, token ids on to the scheduler; token ids back, text out."""

    config_section: ClassVar[str] = "tokenizer"

    listen: tuple[str, ...] = ("127.0.0.1:50051",)

    model: str = DEFAULT_MODEL
    """The model: a catalog name, a directory, a .gguf file or the id of a pulled Hugging Face repository."""

    model_name: str | None = None
    """What clients call the model; its own name when unset."""

    scheduler: str = "127.0.0.1:50052"
    """Address of the scheduler."""

    replica: str | None = None
    """Name of this replica, unlike that of any other and the same after a restart; host and first address
    when unset."""

    recovery_grace_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Seconds that requests wait for a scheduler that is away, before they end UNAVAILABLE."""

    max_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 16384
    """Requests in progress at once; more are refused."""

    max_prompt_bytes: Annotated[int, Field(ge=1)] = 2 * MIB
    """Largest prompt in bytes; what the context length allows is often less."""

    encode_threads: Annotated[int, Field(ge=1, le=64)] = 1
    """Threads that encode long prompts, about 1 MB a second each."""

    template_timeout_s: Annotated[float, Field(gt=0, le=60)] = 0.5
    """Seconds that a chat template may take for one chat."""

    max_unread_bytes: Annotated[int, Field(ge=64 * 1024)] = 64 * MIB
    """Output that clients have not read yet, of all requests together; past it the largest one is ended."""

    max_deltas_per_s: Annotated[float, Field(gt=0)] | None = None
    """Messages a second to all clients together that the door aims at; above it tokens travel together. 100
    for each core when unset."""

    max_delta_delay_s: Annotated[float, Field(ge=0, le=10)] = 0.5
    """Longest that a token waits for others to travel with."""

    @property
    def deltas_per_s(self) -> float:
        """Messages a second that the door aims at."""
        per_s = self.max_deltas_per_s
        return per_s if per_s is not None else _DELTAS_PER_CORE * usable_cores()

    @property
    def replica_name(self) -> str:
        """The name under which this replica attaches to the scheduler."""
        return self.replica if self.replica is not None else f"{socket.gethostname()}/{self.listen[0]}"
