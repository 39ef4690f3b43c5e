"""What the gateway refuses, and how it says so: OpenAI's error form, the parameter named, in no time."""

from __future__ import annotations

import asyncio
import json
import time

import grpc
import pytest

from hundredfold.rpc import RequestError
from support.fake_door import FakeDoor
from support.pace import in_time
from support.running_gateway import RunningGateway, running_gateway

CODE = grpc.StatusCode

HOSTILE = [
    (b"", 400),
    (b"null", 400),
    (b"[1, 2]", 400),
    (b'"text"', 400),
    (b"{", 400),
    (b"\xff\xfe", 400),
    (b'{"prompt": NaN}', 400),
    (b'{"prompt": "x", "temperature": Infinity}', 400),
    (b'{"prompt": "x", "temperature": 1e999}', 400),
    (b'{"prompt": "x", "max_tokens": ' + b"9" * 4000 + b"}", 400),
    (b'{"prompt": "x", "max_tokens": ' + b"9" * 100_000 + b"}", 400),
    (b'{"prompt": ' + b"[" * 100_000, 400),
    (b'{"prompt": "x", "metadata": ' + b'{"a":' * 100_000, 400),
    (b'{"prompt": "\\ud800"}', 400),
    (b'{"prompt": "x", "prompt\\u0000": 1}', 400),
]


@pytest.mark.parametrize(("body", "status"), HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_bodies(gateway: RunningGateway, door: FakeDoor, body: bytes, status: int):
    reply = await gateway.request("POST", "/v1/completions", body)
    assert reply.status == status
    assert reply.error["type"] == "invalid_request_error"
    assert len(reply.error["message"]) < 1000
    assert door.requests == []


async def test_thirty_megabytes_are_refused_while_others_are_served(gateway: RunningGateway):
    body = b'{"prompt": "' + b"x" * 30_000_000 + b'"}'
    big = asyncio.create_task(gateway.request("POST", "/v1/completions", body))
    slowest = 0.0
    while not big.done():
        began = time.monotonic()
        assert (await gateway.get("/health")).status == 200
        slowest = max(slowest, time.monotonic() - began)
    reply = await big
    assert reply.status == 413
    assert "max_body_bytes is 8388608" in reply.error["message"]
    in_time(slowest, 2, "an answer beside it")


async def test_a_body_has_to_be_declared_as_json(gateway: RunningGateway):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = await gateway.request("POST", "/v1/completions", b'{"prompt": "x"}', {"content-type": kind})
        assert reply.status == 415
    declared = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await gateway.request("POST", "/v1/completions", b'{"prompt": "x"}', declared)).status == 200


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (CODE.INVALID_ARGUMENT, 400, "invalid_request_error"),
        (CODE.FAILED_PRECONDITION, 400, "invalid_request_error"),
        (CODE.UNIMPLEMENTED, 400, "invalid_request_error"),
        (CODE.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
        (CODE.DEADLINE_EXCEEDED, 504, "server_error"),
        (CODE.INTERNAL, 500, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_statuses_of_the_door(
    gateway: RunningGateway, door: FakeDoor, code: grpc.StatusCode, status: int, kind: str, stream: bool
):
    door.refusals.append(RequestError(code, "sampling.top_p = 3 is no good", "sampling.top_p", 2.5))
    reply = await gateway.chat(stream=stream)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert reply.error["type"] == kind
    assert reply.error["param"] == "top_p"
    assert reply.error["message"] == "top_p = 3 is no good"
    assert reply.headers["retry-after"] == "3"


async def test_one_refused_prompt_of_several_refuses_all(gateway: RunningGateway, door: FakeDoor):
    door.refusals.append(RequestError(CODE.INVALID_ARGUMENT, "text is empty", "text"))
    reply = await gateway.complete(prompt=["", "long", "longer"], max_tokens=2000, stream=True)
    assert (reply.status, reply.error["param"]) == (400, "prompt")
    await door.idle()


async def test_an_unknown_model(gateway: RunningGateway, door: FakeDoor):
    door.refusals.append(RequestError(CODE.NOT_FOUND, "model = 'm' is not served here", "model"))
    reply = await gateway.chat(model="m")
    assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")


async def test_choices_are_passed_on_and_refused_by_name(gateway: RunningGateway, door: FakeDoor):
    door.refusals.append(RequestError(CODE.UNIMPLEMENTED, "n is not supported by this server", "sampling.n"))
    reply = await gateway.chat(n=2)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "n", "unsupported_parameter")
    assert door.requests[0].sampling.n == 2


async def test_no_door_is_503_after_the_grace():
    async with running_gateway("127.0.0.1:1", ready=False, recovery_grace_s=0.3) as gateway:
        reply = await gateway.chat()
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        health = await gateway.get("/health")
        assert (health.status, health.json["status"]) == (503, "starting")
        assert (await gateway.get("/metrics")).status == 200


async def test_more_prompts_than_may_run_are_429(door: FakeDoor):
    async with running_gateway(f"127.0.0.1:{door.port}", max_requests=2) as gateway:
        holding = await gateway.connect()
        body = json.dumps({"prompt": ["a", "b"], "max_tokens": 2000, "stream": True}).encode()
        await holding.send("POST", "/v1/completions", body)
        assert (await holding.head())[0] == 200
        reply = await gateway.complete()
        assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
        assert reply.headers["retry-after"] == "1"
        holding.leave()
        await door.idle()
        assert (await gateway.complete(max_tokens=2)).status == 200


async def test_unknown_paths_and_methods(gateway: RunningGateway):
    assert (await gateway.get("/v1/nope")).error["type"] == "invalid_request_error"
    reply = await gateway.get("/v1/chat/completions")
    assert reply.status == 405
    assert reply.headers["allow"] == "POST"


async def test_a_fault_of_ours_leaks_nothing(gateway: RunningGateway, door: FakeDoor):
    async def broken(request: object) -> None:
        raise RuntimeError("secret")

    gateway.service._client.info = broken  # type: ignore[union-attr, assignment]
    reply = await gateway.get("/v1/models")
    assert reply.status == 500
    assert b"secret" not in reply.body
    assert b"Traceback" not in reply.body
    assert reply.headers["x-request-id"] in reply.error["message"]
    assert (await gateway.chat(max_tokens=1)).status == 200
