"""A tokenizer replica that speaks ids: attaches to a scheduler over gRPC and keeps what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from hundredfold.internal.v1 import scheduler_pb2, scheduler_pb2_grpc, sequence_pb2
from hundredfold.rpc import channel_options
from support.fake_worker import EOS, Script

_MIB = 1 << 20
BY_LENGTH = Script()


@dataclass
class Told:
    """What the replica was told about one request."""

    ids: list[int] = field(default_factory=list)
    finished: scheduler_pb2.FinishedChoice | None = None
    failure: sequence_pb2.Failure | None = None
    scores: list[sequence_pb2.Scores] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with every message that brings ids."""

    async def wait(self, timeout_s: float = 10) -> Told:
        """Until its end was told."""
        async with asyncio.timeout(timeout_s):
            await self.ended.wait()
        return self

    async def wait_ids(self, count: int, timeout_s: float = 10) -> None:
        """Until so many ids are there."""
        async with asyncio.timeout(timeout_s):
            while len(self.ids) < count:
                self.grown.clear()
                await self.grown.wait()


class Replica:
    """One stream. ``await Replica.attach(...)`` returns after the welcome."""

    def __init__(self, channel: grpc.aio.Channel, call: Any) -> None:
        self.told: dict[int, Told] = {}
        self.welcomes: list[scheduler_pb2.AttachWelcome] = []
        self.messages = 0
        self.welcomed = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()
        """Cleared, the replica reads nothing."""
        self._channel = channel
        self._call = call
        self._reader: asyncio.Task[None] = asyncio.create_task(self._read())
        self._reader.add_done_callback(lambda task: task.cancelled() or task.exception())

    @classmethod
    async def attach(
        cls, address: str, name: str = "replica", fingerprint: str = "f" * 64, protocol_version: int = 1
    ) -> Replica:
        """Open a stream and shake hands. Raises ``AioRpcError`` when refused."""
        # Without probing, the window of a reader that does not read is 64 kB, not megabytes.
        options = [*channel_options(64 * _MIB), ("grpc.http2.bdp_probe", 0)]
        channel = grpc.aio.insecure_channel(address, options=options)
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        call = stub.Attach()
        hello = scheduler_pb2.AttachHello(
            protocol_version=protocol_version, replica=name, model_fingerprint=fingerprint
        )
        await call.write(scheduler_pb2.AttachRequest(hello=hello))
        replica = cls(channel, call)
        async with asyncio.timeout(30):
            await asyncio.wait(
                (replica._reader, asyncio.create_task(replica.welcomed.wait())),
                return_when=asyncio.FIRST_COMPLETED,
            )
        if replica._reader.done():
            await channel.close()
            replica._reader.result()
        return replica

    async def submit(
        self,
        stream_id: int,
        prompt: Sequence[int],
        max_tokens: int = 8,
        script: Script = BY_LENGTH,
        **more: Any,
    ) -> Told:
        """Send a request; ``more`` are fields of ``Submit``."""
        told = self.told[stream_id] = Told()
        params = sequence_pb2.SequenceParams(max_tokens=max_tokens, seed=script.seed, stop_token_ids=[EOS])
        fields: dict[str, Any] = {"request_id": f"request-{stream_id}", "params": params, "n": 1} | more
        told.ids += [token for prior in fields.get("prior", ()) for token in prior.token_ids]
        submit = scheduler_pb2.Submit(stream_id=stream_id, prompt_token_ids=prompt, **fields)
        await self._call.write(scheduler_pb2.AttachRequest(submit=submit))
        return told

    async def cancel(self, stream_id: int) -> None:
        """Tell that a client has gone."""
        await self._call.write(scheduler_pb2.AttachRequest(cancel=scheduler_pb2.Cancel(stream_id=stream_id)))

    async def finish(self, stream_id: int, kept_tokens: int) -> None:
        """Tell that a stop string was found."""
        finish = scheduler_pb2.Finish(stream_id=stream_id, index=0, kept_tokens=kept_tokens)
        await self._call.write(scheduler_pb2.AttachRequest(finish=finish))

    async def send(self, message: scheduler_pb2.AttachRequest) -> None:
        """Send whatever."""
        await self._call.write(message)

    async def close(self) -> None:
        """Break the stream, as a crash would."""
        self._call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close()

    async def ended_with(self, timeout_s: float = 10) -> grpc.StatusCode:
        """The status with which the scheduler ended the stream."""
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(self._reader, return_exceptions=True)
            status: grpc.StatusCode = await self._call.code()
        return status

    async def _read(self) -> None:
        while True:
            await self.reading.wait()
            message = await self._call.read()
            if message is grpc.aio.EOF:
                return
            self.messages += 1
            if message.HasField("welcome"):
                self.welcomes.append(message.welcome)
                self.welcomed.set()
            else:
                self._take(message.outputs)

    def _take(self, outputs: scheduler_pb2.Outputs) -> None:
        start = 0
        assert len(set(outputs.stream_ids)) == len(outputs.stream_ids), "a request has two rows"
        for stream_id, offset, count in zip(outputs.stream_ids, outputs.offsets, outputs.counts, strict=True):
            told = self.told[stream_id]
            assert offset == len(told.ids), f"ids of {stream_id} come at {offset}, {len(told.ids)} are there"
            told.ids += outputs.token_ids[start : start + count]
            told.grown.set()
            start += count
        for scores in outputs.scores:
            self.told[scores.stream_id].scores.append(scores.scores)
        for finished in outputs.finished:
            self.told[finished.stream_id].finished = finished
            self.told[finished.stream_id].ended.set()
        for failed in outputs.failed:
            self.told[failed.stream_id].failure = failed.failure
            self.told[failed.stream_id].ended.set()
