"""The one stream to the scheduler: carries all requests, comes back when it breaks, and submits them anew."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio

from hundredfold.internal.v1 import scheduler_pb2, scheduler_pb2_grpc
from hundredfold.rpc import RequestError
from hundredfold.telemetry import get_logger
from hundredfold_tokenizer.requests.choice import RunningChoice
from hundredfold_tokenizer.requests.demux import BadMessage, deliver
from hundredfold_tokenizer.requests.running import RunningRequest
from hundredfold_tokenizer.validation.request import ModelLimits

log = get_logger(__name__)

_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.05, 0.5
_REFUSED_S = 2.0
_WELCOME_S = 10.0
_ACCOUNT_S = 2.0
"""How long a request whose text a stop string ended waits for the scheduler's account of it."""

_UNLIMITED_CACHE = 2**62
_REFUSALS = (
    grpc.StatusCode.FAILED_PRECONDITION,  # another model or protocol
    grpc.StatusCode.ABORTED,  # another replica has our name
    grpc.StatusCode.UNIMPLEMENTED,  # no scheduler at all
)
_Message = scheduler_pb2.AttachRequest


@dataclass(frozen=True, slots=True)
class Link:
    """How the stream stands.

    Attributes:
        attached: Whether the scheduler has welcomed us.
        worker_ready: Whether it has a worker.
        refusal: Why it refused us, empty if it did not.
    """

    attached: bool = False
    worker_ready: bool = False
    refusal: str = ""


class _Outgoing:
    """What is to be said on one stream; messages are built when their turn comes."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], _Message | None]] = deque()
        self._filled = asyncio.Event()

    def put(self, message: Callable[[], _Message | None]) -> None:
        """Say this, if there is still something to say when it is built."""
        self._waiting.append(message)
        self._filled.set()

    async def messages(self, hello: scheduler_pb2.AttachHello) -> AsyncIterator[_Message]:
        """The hello, then everything in order, for as long as the stream lives."""
        yield _Message(hello=hello)
        while True:
            while self._waiting:
                message = self._waiting.popleft()()
                if message is not None:
                    yield message
            self._filled.clear()
            await self._filled.wait()


class Attachment:
    """Requests that run, and the stream that carries them. Belongs to the event loop.

    Args:
        connect: Opens a channel to the scheduler; a new one each time, without the last one's backoff.
        hello: Who we are.
        grace_s: How long requests wait for a scheduler that is away.
        on_change: Called whenever ``link`` has changed.
        after_step: Called when a message's output has been handed out.
    """

    def __init__(
        self,
        connect: Callable[[], grpc.aio.Channel],
        hello: scheduler_pb2.AttachHello,
        *,
        grace_s: float,
        on_change: Callable[[], None],
        after_step: Callable[[], None],
    ) -> None:
        self.link = Link()
        self.limits: ModelLimits | None = None
        """Bounds of the model, once a worker was ever seen."""
        self._connect = connect
        self._hello = hello
        self._grace_s = grace_s
        self._on_change = on_change
        self._after_step = after_step
        self._live: dict[int, RunningRequest] = {}
        self._next_id = 1
        self._outgoing = _Outgoing()
        self._changed = asyncio.Event()
        self._given_up = False
        self._patience: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Requests that the scheduler works on or will."""
        return len(self._live)

    def draw_id(self) -> int:
        """A number for the next request."""
        self._next_id += 1
        return self._next_id - 1

    async def model_limits(self) -> ModelLimits:
        """The model's bounds; waits for the first worker, but not for ever.

        Raises:
            RequestError: UNAVAILABLE when there is no scheduler, or no worker, within the grace.
        """
        deadline = time.monotonic() + self._grace_s
        while True:
            self._check_reachable()
            if self.limits is not None:
                return self.limits
            left = deadline - time.monotonic()
            if left <= 0:
                raise _unavailable("no worker has been ready yet")
            self._changed.clear()
            try:
                async with asyncio.timeout(min(left, 0.5)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def submit(self, request: RunningRequest) -> None:
        """Take a request on, now or as soon as the scheduler is back."""
        if self._given_up:
            request.fail(_unavailable("the scheduler cannot be reached"))
            return
        self._live[request.stream_id] = request
        if self.link.attached:
            self._send(partial(self._submission, request))

    def release(self, request: RunningRequest) -> None:
        """Let a request go; one that has not ended is dropped by the scheduler too."""
        if self._live.pop(request.stream_id, None) is not None and not request.complete:
            self._send(partial(_cancel, request))

    async def run(self) -> None:
        """Keep the stream up until cancelled."""
        self._be_patient()
        backoff = _FIRST_BACKOFF_S
        while True:
            began = time.monotonic()
            refusal, failure = "", "the scheduler closed the stream"
            try:
                await self._session()
            except grpc.aio.AioRpcError as error:
                failure = f"{error.code().name}: {error.details()}"
                if error.code() in _REFUSALS:
                    refusal = f"the scheduler refuses this tokenizer: {error.details()}"
            except (BadMessage, TimeoutError) as error:
                failure = str(error) or "the scheduler does not answer"
            if self.link.attached or refusal != self.link.refusal:
                log.warning(
                    "not attached to the scheduler", reason=refusal or failure, requests=len(self._live)
                )
            self._detach(refusal)
            if time.monotonic() - began > _MAX_BACKOFF_S:
                backoff = _FIRST_BACKOFF_S
            await asyncio.sleep((_REFUSED_S if refusal else backoff) * random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, _MAX_BACKOFF_S)

    async def _session(self) -> None:
        """One stream from hello to its end."""
        # A queue for each stream: gRPC may still hold the last one's, waiting for a message to lose.
        self._outgoing = _Outgoing()
        async with self._connect() as channel:
            stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            call = stub.Attach(self._outgoing.messages(self._hello))
            try:
                async with asyncio.timeout(_WELCOME_S):
                    first = await call.read()
                if first is grpc.aio.EOF or not first.HasField("welcome"):
                    raise BadMessage("the scheduler did not begin with a welcome")
                self._welcome(first.welcome)
                self._resubmit()
                while (message := await call.read()) is not grpc.aio.EOF:
                    if message.HasField("welcome"):
                        self._welcome(message.welcome)
                    else:
                        self._take(message.outputs)
            finally:
                call.cancel()

    def _send(self, message: Callable[[], _Message | None]) -> None:
        if self.link.attached:
            self._outgoing.put(message)

    def _welcome(self, welcome: scheduler_pb2.AttachWelcome) -> None:
        if welcome.max_model_len:
            self.limits = ModelLimits(
                max_model_len=welcome.max_model_len,
                vocab_size=welcome.vocab_size,
                max_cache_tokens=welcome.max_cache_tokens or _UNLIMITED_CACHE,
                block_size=welcome.block_size or 1,
            )
        if not self.link.attached:
            log.info("attached to the scheduler", incarnation=welcome.incarnation, requests=len(self._live))
        self._given_up = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._set_link(Link(attached=True, worker_ready=welcome.worker_ready))

    def _resubmit(self) -> None:
        for request in list(self._live.values()):
            request.accepted = request.accepted or request.submitted
            request.submitted = False
            if request.settle():
                del self._live[request.stream_id]
            else:
                self._send(partial(self._submission, request))

    def _submission(self, request: RunningRequest) -> _Message | None:
        if request.ended or request.stream_id not in self._live:
            return None
        request.submitted = True
        return _Message(submit=request.submission(time.monotonic()))

    def _take(self, outputs: scheduler_pb2.Outputs) -> None:
        for request, choice in deliver(outputs, self._live):
            if not choice.finish_sent:
                choice.finish_sent = True
                self._send(partial(_finish, request, choice))
                asyncio.get_running_loop().call_later(_ACCOUNT_S, self._settle_late, request, choice)
        over = [done.stream_id for done in outputs.finished] + [failed.stream_id for failed in outputs.failed]
        for stream_id in over:
            over_now = self._live.get(stream_id)
            if over_now is not None and over_now.ended:
                del self._live[stream_id]
        self._after_step()

    def _settle_late(self, request: RunningRequest, choice: RunningChoice) -> None:
        """The account does not come; the text is complete without it."""
        if self._live.get(request.stream_id) is request and request.settle_choice(choice):
            del self._live[request.stream_id]

    def _detach(self, refusal: str) -> None:
        if self.link.attached:
            self._be_patient()
        self._set_link(Link(refusal=refusal))

    def _set_link(self, link: Link) -> None:
        changed, self.link = self.link != link, link
        self._changed.set()
        if changed:
            self._on_change()

    def _check_reachable(self) -> None:
        if self.link.attached:
            return
        if self.link.refusal:
            raise _unavailable(self.link.refusal)
        if self._given_up:
            raise _unavailable("the scheduler cannot be reached")

    def _be_patient(self) -> None:
        """From now on the scheduler may be away for the grace."""
        self._patience = asyncio.get_running_loop().call_later(self._grace_s, self._give_up)

    def _give_up(self) -> None:
        """It has been away for too long: nobody waits any more, until it is back."""
        self._patience = None
        self._given_up = True
        for request in list(self._live.values()):
            request.fail(_unavailable(f"the scheduler has been away for {self._grace_s:g} s"))
        self._live.clear()
        self._changed.set()


def _cancel(request: RunningRequest) -> _Message | None:
    return _Message(cancel=scheduler_pb2.Cancel(stream_id=request.stream_id)) if request.submitted else None


def _finish(request: RunningRequest, choice: RunningChoice) -> _Message | None:
    finish = scheduler_pb2.Finish(
        stream_id=request.stream_id, index=choice.index, kept_tokens=choice.num_tokens
    )
    return _Message(finish=finish)


def _unavailable(reason: str) -> RequestError:
    return RequestError(grpc.StatusCode.UNAVAILABLE, reason, retry_after_s=1.0)
