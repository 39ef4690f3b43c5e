"""Calls that wait until an event loop takes them: one a turn, and gRPC cancels what waits too long."""

from __future__ import annotations

import asyncio
import time

import grpc

from hundredfold.rpc import server_options
from hundredfold.rpc.options import Options

PATIENCE = "grpc.server_max_unrequested_time_in_server"
NUM_CALLS = 40


async def codes_of(options: Options) -> list[grpc.StatusCode]:
    """Of calls that come while the loop turns ten times a second and does nothing else, for four seconds."""

    async def answer(_request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        return b""

    server = grpc.aio.server(options=options)
    handlers = {"Call": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Untaken", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # of its own threads: it is not held up
        call = channel.unary_unary("/test.Untaken/Call")
        futures = [call.future(b"") for _ in range(NUM_CALLS)]
        end = time.monotonic() + 4
        while time.monotonic() < end:
            time.sleep(0.1)  # noqa: ASYNC251 - work that blocks the loop is what this is about
            await asyncio.sleep(0)
        codes = await asyncio.to_thread(lambda: [future.code() for future in futures])
    await server.stop(None)
    return codes


async def test_no_call_is_cancelled_because_the_loop_is_busy() -> None:
    """The option means what we think, seconds until a call is lost, and is past any wait that comes."""
    ours = dict(server_options(1 << 20))
    assert int(ours[PATIENCE]) >= 600
    assert grpc.StatusCode.CANCELLED in await codes_of([*(ours | {PATIENCE: 1}).items()])
