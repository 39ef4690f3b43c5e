"""Talks to a running Compose stack and looks at what Compose made: the checks of `make docker-test`."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any

import grpc

from hundredfold.v1 import control_pb2, control_pb2_grpc, generation_pb2, generation_pb2_grpc

BEHIND_THE_DOOR = ("tokenizer", "scheduler", "worker")
SERVICES = ("gateway", *BEHIND_THE_DOOR)


class Failed(Exception):
    """A check that did not hold; the text says what was found."""


def expect(found: object, wanted: object, what: str) -> None:
    """Raises ``Failed`` unless both are equal."""
    if found != wanted:
        raise Failed(f"{what}: {found!r}, wanted {wanted!r}")


def compose(*arguments: str) -> str:
    """What `docker compose` prints. Raises ``subprocess.CalledProcessError``."""
    command = ["docker", "compose", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def container(service: str) -> dict[str, Any]:
    """What the engine says about a service's container."""
    shown = subprocess.run(
        ["docker", "inspect", compose("ps", "--quiet", service)], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(shown.stdout)[0]
    return found


def check_door(port: int) -> None:
    """The door describes all three services and answers the same greedy text twice."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        info = control_pb2_grpc.ControlServiceStub(channel).GetServerInfo(
            control_pb2.GetServerInfoRequest(), timeout=10
        )
        expect({s.service for s in info.services}, set(BEHIND_THE_DOOR), "services behind the door")
        expect({s.state for s in info.services}, {"ready"}, "their states")

        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = generation_pb2.GenerateRequest(
            text="hello",
            sampling=generation_pb2.SamplingParams(max_tokens=16, temperature=0),
        )
        answers = [
            [d for r in stub.Generate(request, timeout=60) for d in r.delta.token_ids] for _ in range(2)
        ]
        expect(answers[0], answers[1], "the same greedy request again")
        expect(bool(answers[0]), True, "an answer with tokens")

        request.sampling.min_tokens = 16
        once = stub.GenerateOnce(generation_pb2.GenerateOnceRequest(request=request), timeout=60)
        expect(len(once.choices[0].content.token_ids), 16, "tokens of GenerateOnce")
        print(f"  hello{once.choices[0].content.text!r}")


def check_http(port: int) -> None:
    """OpenAI's API answers a chat."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer = json.load(reply)
    expect(answer["usage"]["completion_tokens"] > 0, True, "tokens of a chat over HTTP")


def check_ports(port: int, http_port: int) -> None:
    """The doors are published, on loopback; nothing else is."""
    published = {
        (service, binding["HostIp"], binding["HostPort"])
        for service in SERVICES
        for bindings in container(service)["NetworkSettings"]["Ports"].values()
        for binding in bindings or []
    }
    doors = {("tokenizer", "127.0.0.1", str(port)), ("gateway", "127.0.0.1", str(http_port))}
    expect(published, doors, "published ports")
    for inner in (50050, 50052, 50053):
        with socket.socket() as attempt:
            attempt.settimeout(2)
            expect(attempt.connect_ex(("127.0.0.1", inner)) != 0, True, f"port {inner} closed on the host")


def check_inside() -> None:
    """Scheduler and worker share a network that leads nowhere, and no other."""
    for service in ("scheduler", "worker"):
        networks = list(container(service)["NetworkSettings"]["Networks"])
        shown = subprocess.run(
            ["docker", "network", "inspect", *networks], check=True, capture_output=True, text=True
        )
        expect(
            [n["Internal"] for n in json.loads(shown.stdout)], [True], f"networks of {service} are internal"
        )


def check_rights(user: int) -> None:
    """Every service runs as ``user``, cannot write its root and holds no capability."""
    probe = (
        "import os, pathlib\n"
        "status = pathlib.Path('/proc/1/status').read_text()\n"
        "uid = status.split('Uid:')[1].split()[1]\n"
        "capabilities = status.split('CapEff:')[1].split()[0]\n"
        "try:\n    pathlib.Path('/opt/hundredfold/x').touch(); written = True\n"
        "except OSError:\n    written = False\n"
        "print(uid, int(capabilities, 16), written)"
    )
    for service in SERVICES:
        found = compose("exec", "-T", service, "python3", "-c", probe).split()
        expect(found, [str(user), "0", "False"], f"user, capabilities and writable root of {service}")
        expect(container(service)["HostConfig"]["ReadonlyRootfs"], True, f"read-only root of {service}")


def check_weight() -> None:
    """torch is where a model runs and nowhere else."""
    finds = "import importlib.util; print(importlib.util.find_spec('torch') is not None)"
    found = {service: compose("exec", "-T", service, "python3", "-c", finds) for service in SERVICES}
    expect(found, {service: str(service == "worker") for service in SERVICES}, "torch in the images")


def seated() -> dict[str, int]:
    """Requests at each worker, by address, as the scheduler tells it inside its container."""
    asks = (
        "import grpc\n"
        "from hundredfold.v1 import control_pb2, control_pb2_grpc\n"
        "stub = control_pb2_grpc.ControlServiceStub(grpc.insecure_channel('127.0.0.1:50052'))\n"
        "load = stub.GetLoad(control_pb2.GetLoadRequest(), timeout=10)\n"
        "print(*(f'{w.address}={w.running}' for w in load.workers if w.takes_new))"
    )
    told = compose("exec", "-T", "scheduler", "python3", "-c", asks).split()
    return {address: int(running) for address, _, running in (pair.partition("=") for pair in told)}


def wait_seated(count: int, least: int) -> None:
    """Until ``count`` workers have at least ``least`` requests each."""
    deadline = time.monotonic() + 300
    while len(found := seated()) != count or min(found.values()) < least:
        if time.monotonic() > deadline:
            raise Failed(f"requests at the workers: {found}, wanted {count} workers with {least} or more")
        time.sleep(0.5)
    print(f"  requests at the workers: {found}")


def check_replicas(port: int, count: int) -> None:
    """All workers that the name stands for take part, and one that is killed under load fails nothing."""
    wait_seated(count, 0)
    sampling = generation_pb2.SamplingParams(max_tokens=256, temperature=0, ignore_eos=True)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        streams = [
            stub.Generate(generation_pb2.GenerateRequest(text=f"hello {n}", sampling=sampling), timeout=300)
            for n in range(16)
        ]
        wait_seated(count, 1)
        victim = compose("ps", "--quiet", "worker").split()[-1]
        subprocess.run(["docker", "kill", victim], check=True, capture_output=True)
        for stream in streams:
            events = list(stream)
            expect(sum(len(event.delta.token_ids) for event in events), 256, "tokens of a stream")
            expect(events[-1].WhichOneof("event"), "finished", "the last event of a stream")


def main() -> int:
    """Run every check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=int(os.environ.get("HUNDREDFOLD_PORT", "50051")))
    parser.add_argument("--http-port", type=int, default=int(os.environ.get("HUNDREDFOLD_HTTP_PORT", "8000")))
    parser.add_argument("--user", type=int, default=10001)
    parser.add_argument("--workers", type=int, default=1, help="with more than one only these are looked at")
    arguments = parser.parse_args()
    try:
        if arguments.workers > 1:
            check_replicas(arguments.port, arguments.workers)
            return 0
        check_door(arguments.port)
        check_http(arguments.http_port)
        check_ports(arguments.port, arguments.http_port)
        check_inside()
        check_rights(arguments.user)
        check_weight()
    except (Failed, grpc.RpcError) as error:
        print(f"smoke test failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
