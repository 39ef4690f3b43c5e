"""What the scheduler service can be told."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from hundredfold.config import MIB, ServiceSettings
from hundredfold_scheduler.addresses import check_address
from hundredfold_scheduler.core.worker import MAX_PLANS_IN_FLIGHT

MIN_BLOCK_SIZE, MAX_BLOCK_SIZE = 16, 256


class SchedulerSettings(ServiceSettings):
    """The planning room: queues requests and plans the worker's steps."""

    config_section: ClassVar[str] = "scheduler"

    listen: tuple[str, ...] = ("127.0.0.1:50052",)

    worker: tuple[str, ...] = ("127.0.0.1:50053",)
    """Addresses of the workers, or ``dns:///NAME:PORT`` for all that a name stands for; comma-separated."""

    worker_lookup_s: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """Seconds between two look-ups of a worker's ``dns:///`` name."""

    model: str | None = None
    """The model that the worker has to serve, named as there; any, as long as the tokenizers agree, when
    unset.
    """

    max_num_seqs: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Most sequences that run at once; as many as the worker can hold when unset, never more."""

    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Most tokens that a step computes; as many as the worker allows when unset, never more."""

    max_model_len: Annotated[int, Field(ge=2, le=16_777_216)] | None = None
    """Longest prompt and answer together in tokens; as long as the worker allows when unset, never longer."""

    block_size: Annotated[int, Field(ge=MIN_BLOCK_SIZE, le=MAX_BLOCK_SIZE)] | None = None
    """Tokens in a cache block; a worker with another size is refused. The worker's own when unset."""

    max_queued_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000
    """Requests that may wait for a seat; more are refused."""

    max_queued_tokens: Annotated[int, Field(ge=1, le=1_000_000_000)] = 10_000_000
    """Prompt tokens that may wait for a seat; more are refused."""

    order: Literal["fair", "fcfs"] = "fair"
    """Inside a priority: ``fair`` gives the next turn to the tenant that was served the fewest tokens,
    ``fcfs`` to the earliest request.
    """

    ageing_s: Annotated[float, Field(ge=0, le=86400)] = 60.0
    """Seconds of waiting that raise a request by one priority, up to the highest that waits; 0 for never."""

    victims: Literal["cheapest", "latest"] = "cheapest"
    """Who gives memory back when a running request needs it: of the lowest priority the one with the fewest
    tokens to compute again, or the latest.
    """

    batch_timeout_ms: Annotated[int, Field(ge=0, le=60_000)] = 0
    """Milliseconds that an idle worker waits for more requests before it begins with the first."""

    prefill_interval: Annotated[int, Field(ge=1, le=1000)] = 1
    """New requests start at most every so many steps while others decode."""

    step_target_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None
    """Milliseconds that a step may take: prompts get as much of it as the decodes leave, by what the worker's
    steps took before, and a tenth of what these take where they leave less; a good value is twice what a step
    of decodes takes at full load. When unset, 2.5 times what the decodes of the step take alone, as long as
    most requests decode or several tenants are there; else prompts get all of max_num_batched_tokens. Prompts
    that end by it then have such a step before that of the decodes.
    """

    max_plans_in_flight: Annotated[int, Field(ge=1, le=MAX_PLANS_IN_FLIGHT)] = MAX_PLANS_IN_FLIGHT
    """Steps sent ahead of their results; 1 waits for each result, 2 keeps the worker busy meanwhile. The
    second is sent shortly before the first is thought to end.
    """

    run_ahead_ms: Annotated[float, Field(ge=0, le=1000)] = 32.0
    """Milliseconds that short steps may go on in one plan, when nobody waits and no prompt is under way: what
    a plan and its result cost is then paid once for several tokens of a sequence, which arrive together. A
    request that comes meanwhile starts after the step that runs. The default gives text thirty times a second
    where few requests run. Where many do it is up to 100 ms, for their text rests at the door; 0 for a token
    at a time.
    """

    max_unread_bytes: Annotated[int, Field(ge=64 * 1024)] = 64 * MIB
    """Output that a tokenizer replica may leave unread, as ids; past it the largest request is ended."""

    recovery_grace_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Seconds without a worker after which the service is no longer ready; requests wait meanwhile."""

    worker_silence_s: Annotated[float, Field(gt=0, le=3600)] = 20.0
    """Seconds after which a worker whose process answers no call at all counts as dead; it gets nothing new
    from its first silence on.
    """

    step_timeout_s: Annotated[float, Field(gt=0, le=86400)] = 120.0
    """Seconds after which a worker that answers no step counts as dead."""

    @field_validator("worker")
    @classmethod
    def _workers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("names no worker")
        return tuple(dict.fromkeys(map(check_address, value)))

    @property
    def unread_limit(self) -> int:
        """``max_unread_bytes`` as far as it fits one message: what was left unread is sent in one."""
        return min(self.max_unread_bytes, self.max_message_bytes)
