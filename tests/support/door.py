"""Talks to the door through raw stubs, as a client in any language would."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import generation_pb2_grpc as rpc

OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


@dataclass
class Answer:
    """Everything that came back for one request."""

    started: pb.Started | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[pb.TokenLogprobs] = field(default_factory=list)
    finished: list[pb.Finished] = field(default_factory=list)
    prompt_logprobs: pb.PromptLogprobs | None = None
    deltas: int = 0

    def take(self, event: pb.GenerateResponse) -> None:
        """Add one event."""
        match event.WhichOneof("event"):
            case "started":
                self.started = event.started
            case "delta":
                self.text += event.delta.text
                self.token_ids += event.delta.token_ids
                self.logprobs += event.delta.logprobs
                self.deltas += 1
            case "finished":
                self.finished.append(event.finished)
            case "prompt_logprobs":
                self.prompt_logprobs = event.prompt_logprobs


def request(prompt: str | Sequence[int], **sampling: object) -> pb.GenerateRequest:
    """A request for a text or for token ids; keywords are sampling fields."""
    message = pb.GenerateRequest(sampling=pb.SamplingParams(**sampling))  # type: ignore[arg-type]
    if isinstance(prompt, str):
        message.text = prompt
    else:
        message.token_ids.ids.extend(prompt)
    return message


def generate(address: str, message: pb.GenerateRequest, timeout_s: float = 120) -> Answer:
    """Run one request to its end."""
    return asyncio.run(generate_all(address, [message], timeout_s=timeout_s))[0]


async def generate_all(
    address: str, messages: Sequence[pb.GenerateRequest], *, timeout_s: float = 240, at_once: int = 1024
) -> list[Answer]:
    """Run many requests side by side over one channel; raises the first failure."""
    gate = asyncio.Semaphore(at_once)
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        stub = rpc.GenerationServiceStub(channel)

        async def run(message: pb.GenerateRequest) -> Answer:
            answer = Answer()
            async with gate:
                async for event in stub.Generate(message, timeout=timeout_s):
                    answer.take(event)
            return answer

        return await asyncio.gather(*(run(message) for message in messages))
