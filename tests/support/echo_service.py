"""A small real service on a ServiceHost: streams on command, for tests of the host. Runs as a program too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar, TypeAlias

import grpc
import grpc.aio

from hundredfold.config import ServiceSettings, service_command
from hundredfold.internal.v1 import scheduler_pb2, scheduler_pb2_grpc
from hundredfold.rpc import RequestError, ServiceHost, run_loop
from hundredfold.telemetry import inject, start_request_span, step_span
from hundredfold.v1 import control_pb2, generation_pb2, generation_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class EchoSettings(ServiceSettings):
    """Run the echo service."""

    config_section: ClassVar[str] = "echo"
    listen: tuple[str, ...] = ("127.0.0.1:0",)


class Echo(generation_pb2_grpc.GenerationServiceServicer, scheduler_pb2_grpc.SchedulerServiceServicer):
    """The text of a request says what happens: ``count 5 0.1``, ``refuse``, ``retry``, ``fail``, ``hang``."""

    def __init__(self) -> None:
        self.host: ServiceHost | None = None
        self.calls = 0
        self.attached = 0
        self.ended: list[str] = []

    async def info(self) -> list[control_pb2.ServiceInfo]:
        assert self.host is not None
        return [self.host.service_info("numpy")]

    async def load(self) -> control_pb2.GetLoadResponse:
        return control_pb2.GetLoadResponse(running=self.running())

    def running(self) -> int:
        return self.calls

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        self.calls += 1
        kind, *arguments = request.text.split()
        try:
            if kind == "count":
                for i in range(int(arguments[0])):
                    yield generation_pb2.GenerateResponse(delta=generation_pb2.Delta(text=str(i)))
                    await asyncio.sleep(float(arguments[1]))
            if kind == "hang":
                yield generation_pb2.GenerateResponse(delta=generation_pb2.Delta(text="0"))
                await asyncio.Event().wait()
            self.misbehave(kind)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        finally:
            self.calls -= 1
            self.ended.append(kind)

    async def GenerateOnce(
        self, request: generation_pb2.GenerateOnceRequest, context: Context
    ) -> generation_pb2.GenerateOnceResponse:
        kind = request.request.text[:10].strip()
        self.misbehave(kind)
        text = inject() if kind == "trace" else "x" * len(request.request.text)
        if kind == "steps":
            span = start_request_span("request", inject(), {"gen_ai.request.model": "m"})
            with step_span("step", [span.traceparent]) as step:
                span.link(step)
            span.end()
        choice = generation_pb2.Choice(content=generation_pb2.Delta(text=text))
        return generation_pb2.GenerateOnceResponse(choices=[choice])

    async def Abort(
        self, request: generation_pb2.AbortRequest, context: Context
    ) -> generation_pb2.AbortResponse:
        return generation_pb2.AbortResponse()

    async def Attach(
        self, requests: AsyncIterator[scheduler_pb2.AttachRequest], context: Context
    ) -> AsyncIterator[scheduler_pb2.AttachResponse]:
        self.attached += 1
        try:
            async for _ in requests:
                yield scheduler_pb2.AttachResponse()
        finally:
            self.attached -= 1

    def misbehave(self, kind: str) -> None:
        if kind == "refuse":
            raise RequestError(
                grpc.StatusCode.INVALID_ARGUMENT, "top_p = 7 is above 1", field="sampling.top_p"
            )
        if kind == "long":
            raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, "🙂" * 100_000, field="🙂" * 1000)
        if kind == "retry":
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full", retry_after_s=1.5)
        if kind == "fail":
            raise KeyError("/secret/path")


def build(settings: EchoSettings, *, install_signals: bool) -> tuple[ServiceHost, Echo]:
    """The host with its servicers."""
    echo = Echo()
    host = ServiceHost("echo", settings, echo, install_signals=install_signals)
    echo.host = host
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(echo, host.server)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(echo, host.server)
    return host, echo


def run(settings: EchoSettings) -> int:
    """Serve until stopped."""

    async def main() -> int:
        host, _ = build(settings, install_signals=True)
        host.set_ready(True)
        return await host.run()

    return run_loop(main())


if __name__ == "__main__":
    service_command(EchoSettings, run).main()
