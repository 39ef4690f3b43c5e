"""The host as a process: signals, exit codes, restarts after a kill, spans and metrics that leave it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from hundredfold.v1 import generation_pb2, generation_pb2_grpc
from support import echo_service
from support.pace import TooSlow
from support.ports import free_port

SERVING = health_pb2.HealthCheckResponse.SERVING


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, echo_service.__file__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def wait_ready(address: str, seconds: float = 60) -> None:
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        answer = stub.Check(request, timeout=seconds, wait_for_ready=True)
        assert answer.status == SERVING


def wait_told(address: str) -> None:
    """Until the first signal has arrived: what comes long after that is another one."""
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while stub.Check(health_pb2.HealthCheckRequest(), timeout=30).status == SERVING:
            time.sleep(0.02)


def generate(channel: grpc.Channel, text: str) -> Any:
    return generation_pb2_grpc.GenerationServiceStub(channel).Generate(
        generation_pb2.GenerateRequest(text=text)
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_the_exit_code_is_0(number: signal.Signals) -> None:
    address = f"127.0.0.1:{free_port()}"
    with process("--listen", address) as child, grpc.insecure_channel(address) as channel:
        wait_ready(address)
        stream = generate(channel, "count 4 0.2")
        next(stream)
        child.send_signal(number)
        child.send_signal(number)  # the same one again, as a terminal and a supervisor send it
        try:
            assert [answer.delta.text for answer in stream] == ["1", "2", "3"]
        except grpc.RpcError as error:
            if child.wait(30) == 128 + number:
                raise TooSlow("between the two it took the second for another") from error
            raise
        assert child.wait(30) == 0


def test_a_second_signal_leaves_at_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    with process("--listen", address) as child, grpc.insecure_channel(address) as channel:
        wait_ready(address)
        stream = generate(channel, "hang")
        next(stream)
        child.terminate()
        wait_told(address)
        time.sleep(0.7)
        assert child.poll() is None
        child.terminate()
        assert child.wait(30) == 128 + signal.SIGTERM


def test_the_grace_is_a_setting() -> None:
    address = f"127.0.0.1:{free_port()}"
    with process("--listen", address, "--drain-grace-s", "0.5") as child:
        wait_ready(address)
        with grpc.insecure_channel(address) as channel:
            stream = generate(channel, "hang")
            next(stream)
            child.terminate()
            with pytest.raises(grpc.RpcError) as caught:
                next(stream)
            assert isinstance(caught.value, grpc.Call)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert child.wait(30) == 0


def test_killed_and_restarted_on_the_same_socket(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/echo.sock"
    for _ in range(3):
        with process("--listen", address) as child:
            wait_ready(address)
            child.kill()
            child.wait(30)
        assert (tmp_path / "echo.sock").is_socket()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--listen", "0.0.0.0:50999"], 2, "can be reached by other machines"),
        (["--drain-grace-s", "-1"], 2, "drain_grace_s = -1"),
        (["--listn", "x"], 2, "--listen"),
        (["--listen", "unix:/nowhere/at/all.sock"], 1, "there is no directory /nowhere/at"),
    ],
)
def test_a_bad_start_ends_in_words(arguments: list[str], code: int, said: str) -> None:
    with process(*arguments) as child:
        output, _ = child.communicate(timeout=60)
        assert child.returncode == code
        assert said in output
        assert "Traceback" not in output


def test_a_taken_port_ends_the_second_process() -> None:
    address = f"127.0.0.1:{free_port()}"
    with process("--listen", address):
        wait_ready(address)
        with process("--listen", address) as second:
            output, _ = second.communicate(timeout=60)
            assert second.returncode == 1
            assert f"cannot listen on {address}: address already in use" in output
        wait_ready(address)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans as a collector would."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(attributes["service.name"])
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()


def once(address: str, text: str, traceparent: str) -> str:
    with grpc.insecure_channel(address) as channel:
        request = generation_pb2.GenerateOnceRequest(request=generation_pb2.GenerateRequest(text=text))
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        answer = stub.GenerateOnce(request, metadata=(("traceparent", traceparent),))
        return answer.choices[0].content.text


TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def test_spans_carry_the_callers_trace_and_link_both_ways() -> None:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    address = f"127.0.0.1:{free_port()}"
    try:
        with process("--listen", address, "--otlp-endpoint", f"http://127.0.0.1:{port}") as child:
            wait_ready(address)
            inner = once(address, "trace", PARENT)
            assert inner.split("-")[1] == TRACE
            assert inner != PARENT  # our own span is the parent of what comes behind
            once(address, "steps", PARENT)
            child.terminate()
            assert child.wait(30) == 0
    finally:
        server.stop(None)
    assert collector.services == {"hundredfold-echo"}
    spans = {span.name: span for span in collector.spans}
    call = spans["hundredfold.v1.GenerationService/GenerateOnce"]
    request, step = spans["request"], spans["step"]
    assert call.trace_id.hex() == request.trace_id.hex() == TRACE
    assert step.trace_id != request.trace_id
    assert [link.span_id for link in step.links] == [request.span_id]
    assert [link.span_id for link in request.links] == [step.span_id]
    assert {a.key for a in request.attributes} == {"gen_ai.request.model"}


def test_without_an_endpoint_the_trace_passes_through() -> None:
    address = f"127.0.0.1:{free_port()}"
    with process("--listen", address):
        wait_ready(address)
        assert once(address, "trace", PARENT) == PARENT
        assert once(address, "trace", "nonsense") == ""


def test_metrics_are_scraped_over_http() -> None:
    address, port = f"127.0.0.1:{free_port()}", free_port()
    with process("--listen", address, "--metrics-port", str(port)):
        wait_ready(address)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert answer.status == 200
