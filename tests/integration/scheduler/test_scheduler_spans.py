"""Traces across the hop: the scheduler's span between door and worker, links between steps and requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from support.grpc_worker import GrpcWorker
from support.scheduler_process import SchedulerProcess

TRACE = "0af7651916cd43dd8448eb211c80319c"
DOOR_SPAN = "b7ad6b7169203331"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    async def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


async def test_spans_of_a_request_and_its_steps(tmp_path: Path) -> None:
    collector = Collector()
    server = grpc.aio.server()
    serve: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    serve(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    worker = GrpcWorker()
    process = SchedulerProcess(
        tmp_path / "log",
        "--run-ahead-ms=0",
        "--worker",
        await worker.start(),
        "--otlp-endpoint",
        f"http://127.0.0.1:{port}",
    )
    try:
        replica = await process.attach()
        told = await replica.submit(0, [3] * 20, 5, traceparent=f"00-{TRACE}-{DOOR_SPAN}-01")
        await told.wait()
        await replica.close()
        process.stop()
        assert await process.wait() == 0
    finally:
        process.kill()
        await worker.stop()
        await server.stop(None)
    (request,) = [span for span in collector.spans if span.name == "schedule"]
    assert request.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == DOOR_SPAN
    assert [event.name for event in request.events] == ["admitted", "first token"]
    steps = [span for span in collector.spans if span.name == "plan"]
    assert len(steps) >= 5
    working = [step for step in steps if step.links]
    assert {link.span_id for step in working for link in step.links} == {request.span_id}
    assert {link.span_id for link in request.links} == {step.span_id for step in working}
    (new,) = [new for plan in worker.plans for new in plan.new_sequences]
    assert new.traceparent == f"00-{TRACE}-{request.span_id.hex()}-01"
