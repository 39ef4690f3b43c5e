"""A stand-in for a service: answers health checks on a Unix socket and ends as its arguments say."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--exit-code", type=int, help="end by itself with this code")
    parser.add_argument("--exit-after", type=float, default=0.0, help="seconds after start, or after ready")
    parser.add_argument("--exit-before-ready", action="store_true")
    parser.add_argument("--stop-takes", type=float, default=0.0)
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--say", action="append", default=[])
    parser.add_argument("--say-long", type=int, default=0, help="a line of this many bytes")
    given = parser.parse_args()

    def event(what: str) -> None:
        with (given.directory / "events").open("a") as file:
            file.write(f"{what} {given.name} {os.getpid()}\n")

    stopped = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if given.ignore_sigterm else lambda *_: stopped.set())
    event("start")
    for line in given.say:
        print(line, flush=True)
    if given.say_long:
        print("x" * given.say_long, flush=True)
    if given.exit_before_ready:
        time.sleep(given.exit_after)
        sys.exit(given.exit_code)
    servicer = health.HealthServicer()
    servicer.set("readiness", health_pb2.HealthCheckResponse.NOT_SERVING)
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{given.directory / given.name}.sock")
    server.start()
    time.sleep(given.ready_after)
    servicer.set("readiness", health_pb2.HealthCheckResponse.SERVING)
    if given.exit_code is not None:
        time.sleep(given.exit_after)
        event("end")
        os._exit(given.exit_code)
    stopped.wait()
    time.sleep(given.stop_takes)
    event("stop")
    os._exit(0)


if __name__ == "__main__":
    main()
