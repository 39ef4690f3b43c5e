"""Answers of the gateway over a door: whole and streamed, one choice and many, in OpenAI's form."""

from __future__ import annotations

import asyncio
import json

import pytest

from support.fake_door import FakeDoor, expected_text
from support.running_gateway import RunningGateway

USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 5,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 0},
}


async def test_a_whole_chat(gateway: RunningGateway, door: FakeDoor):
    reply = await gateway.chat(max_tokens=5)
    assert reply.status == 200
    assert reply.json["object"] == "chat.completion"
    assert reply.json["model"] == "fake"
    (choice,) = reply.json["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected_text(5), "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert reply.json["usage"] == USAGE
    assert door.requests[0].model == "fake"
    assert door.requests[0].chat.messages[0].content == "x"


async def test_a_streamed_chat(gateway: RunningGateway):
    reply = await gateway.chat(max_tokens=5, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *chunks, done = reply.events
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    first, *middle, last = [chunk["choices"][0] for chunk in chunks]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"]["content"] for choice in middle) == expected_text(5)
    assert {choice["finish_reason"] for choice in (first, *middle)} == {None}
    assert (last["delta"], last["finish_reason"]) == ({}, "length")


async def test_usage_comes_last_when_asked_for(gateway: RunningGateway):
    reply = await gateway.chat(max_tokens=5, stream=True, stream_options={"include_usage": True})
    *chunks, last, done = reply.events
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]) == ([], USAGE)


async def test_a_streamed_completion_is_the_whole_one(gateway: RunningGateway):
    whole = await gateway.complete(max_tokens=7, seed=3)
    streamed = await gateway.complete(max_tokens=7, seed=3, stream=True)
    assert whole.json["object"] == "text_completion"
    (choice,) = whole.json["choices"]
    *chunks, _ = streamed.events
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"] == expected_text(7)
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "inputs"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_of_every_kind(
    gateway: RunningGateway, door: FakeDoor, prompt: object, inputs: list[object], stream: bool
):
    reply = await gateway.complete(prompt=prompt, max_tokens=3, stream=stream)
    sent = [r.text or list(r.token_ids.ids) for r in door.requests]
    assert sorted(sent, key=str) == sorted(inputs, key=str)
    if stream:
        texts = [""] * len(inputs)
        for chunk in reply.events[:-1]:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    else:
        assert [choice["index"] for choice in reply.json["choices"]] == list(range(len(inputs)))
        texts = [choice["text"] for choice in reply.json["choices"]]
        assert reply.json["usage"]["total_tokens"] == 6 * len(inputs)
    assert texts == [expected_text(3)] * len(inputs)


async def test_completions_have_sixteen_tokens_unless_they_say(gateway: RunningGateway, door: FakeDoor):
    await gateway.complete()
    await gateway.chat()
    assert door.requests[0].sampling.max_tokens == 16
    assert not door.requests[1].sampling.HasField("max_tokens")


async def test_the_request_id_is_echoed_and_used_and_never_taken(gateway: RunningGateway, door: FakeDoor):
    body = json.dumps({"model": "fake", "prompt": "x", "max_tokens": 20}).encode()
    names = ["abc", "abc", "not plain: \xe9 ", "y" * 1000]
    replies = await asyncio.gather(
        *(gateway.request("POST", "/v1/completions", body, {"x-request-id": name}) for name in names)
    )
    assert [reply.status for reply in replies] == [200] * 4
    assert [reply.headers["x-request-id"] for reply in replies] == [name.strip() for name in names]
    below = [request.request_id for request in door.requests]
    assert len(set(below)) == 4
    assert sum(name.startswith("abc-") for name in below) == 2
    assert all(name.isascii() and name.isprintable() and len(name) <= 128 for name in below)
    drawn = [(await gateway.get("/health")).headers["x-request-id"] for _ in range(2)]
    assert len(set(drawn)) == 2


async def test_headers_say_priority_tenant_and_time(gateway: RunningGateway, door: FakeDoor):
    headers = {"x-priority": "-3", "x-tenant": "team", "x-request-timeout": "30"}
    await gateway.post("/v1/completions", headers, model="fake", prompt="x", max_tokens=1)
    await gateway.post(
        "/v1/completions", headers, model="fake", prompt="x", max_tokens=1, priority=7, tenant="b"
    )
    assert [(r.priority, r.tenant) for r in door.requests] == [(-3, "team"), (7, "b")]
    for wrong in ("0", "-1", "nan", "x", "1e9"):
        reply = await gateway.post("/v1/completions", {"x-request-timeout": wrong}, model="fake", prompt="x")
        assert (reply.status, reply.error["param"]) == (400, "x-request-timeout")


async def test_a_tenant_of_others_is_their_address(gateway: RunningGateway, door: FakeDoor):
    headers = {"x-forwarded-for": "203.0.113.9", "x-tenant": "team"}
    await gateway.post("/v1/completions", headers, model="fake", prompt="x", max_tokens=1)
    assert door.requests[0].tenant == "peer:203.0.113.9"


async def test_models_and_text(gateway: RunningGateway):
    listed = (await gateway.get("/v1/models")).json
    assert [card["id"] for card in listed["data"]] == ["fake"]
    assert (await gateway.get("/v1/models/fake")).json == listed["data"][0]
    unknown = await gateway.get("/v1/models/org/other")
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    tokens = (await gateway.post("/tokenize", prompt="é")).json
    assert tokens == {"count": 3, "max_model_len": 100, "tokens": [1, 195, 169]}
    assert (await gateway.post("/tokenize", prompt="é", add_special_tokens=False)).json["count"] == 2
    chat = (await gateway.post("/tokenize", messages=[{"role": "user", "content": "A"}])).json
    assert bytes(chat["tokens"]) == b"<user>A"
    assert (await gateway.post("/detokenize", tokens=[65, 66])).json == {"prompt": "AB"}
    assert (await gateway.post("/tokenize")).status == 400
    assert (await gateway.post("/detokenize", tokens=[-1])).error["param"] == "tokens[0]"


async def test_metrics_tell_of_routes_statuses_and_first_tokens(gateway: RunningGateway):
    await gateway.chat(max_tokens=4)
    await gateway.complete(max_tokens=4, stream=True)
    await gateway.complete(temperature="hot")
    await gateway.request("BREW", "/coffee/" + "x" * 500)
    text = (await gateway.get("/metrics")).body.decode()
    counts = [
        line for line in text.splitlines() if line.startswith("http_server_request_duration_seconds_count")
    ]

    def count(route: str, status: int) -> float:
        marks = (f'http_route="{route}"', f'http_response_status_code="{status}"')
        return sum(float(line.split()[-1]) for line in counts if all(mark in line for mark in marks))

    assert count("/v1/chat/completions", 200) == 1
    assert count("/v1/completions", 200) == 1
    assert count("/v1/completions", 400) == 1
    assert count("other", 404) == 1
    first = [
        line
        for line in text.splitlines()
        if line.startswith("gen_ai_server_time_to_first_token_seconds_count")
    ]
    assert sum(float(line.split()[-1]) for line in first) == 2
    assert "hundredfold_output_tokens_total" in text
    assert "xxxx" not in text
    assert "BREW" not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_trace_goes_on_to_the_door(gateway: RunningGateway, door: FakeDoor, stream: bool):
    """Its client's traceparent names the trace; one that is no such thing, and none, are none."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    for traceparent in (f"00-{trace}-b7ad6b7169203331-01", "nonsense", ""):
        headers = {"traceparent": traceparent} if traceparent else {}
        await gateway.post("/v1/completions", headers, prompt="x", max_tokens=2, stream=stream)
    first, *others = door.traces
    assert trace in first
    assert others == ["", ""]
