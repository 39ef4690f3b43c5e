"""Arguments become exactly the contract's fields; what does not fit is named."""

from __future__ import annotations

import pytest

from hundredfold.client import requests
from hundredfold.client.options import CHAT_FIELDS, REQUEST_FIELDS, SAMPLING_FIELDS, GenerateOptions
from hundredfold.v1 import generation_pb2 as pb


def make(text=None, chat=None, token_ids=None, **options):
    return requests.generate_request(text, chat, token_ids, options)


def test_options_mirror_the_contract():
    assert {f.name for f in pb.SamplingParams.DESCRIPTOR.fields} == SAMPLING_FIELDS
    request = {f.name for f in pb.GenerateRequest.DESCRIPTOR.fields}
    assert request - {"text", "chat", "token_ids", "sampling", "resume", "grammar"} == REQUEST_FIELDS
    chat = {f.name.removesuffix("_json") for f in pb.ChatInput.DESCRIPTOR.fields}
    assert chat - {"messages"} == CHAT_FIELDS
    assert set(GenerateOptions.__annotations__) == SAMPLING_FIELDS | REQUEST_FIELDS | CHAT_FIELDS


def test_unset_stays_unset_and_zero_does_not():
    request = make("x")
    assert request.sampling.ListFields() == []
    assert not request.HasField("sampling")
    request = make("x", temperature=0.0, seed=0, max_tokens=0, ignore_eos=False, top_p=None)
    assert {field.name for field, _ in request.sampling.ListFields()} == {
        *("temperature", "seed", "max_tokens", "ignore_eos"),
    }


def test_every_field_arrives():
    request = make(
        token_ids=[5, 6],
        model="m",
        request_id="r",
        priority=-3,
        tenant="t",
        cache_salt="s",
        stop="END",
        stop_token_ids=[7],
        bad_words=["no", "never"],
        logit_bias={3: -1.5},
        seed=2**64 - 1,
    )
    assert list(request.token_ids.ids) == [5, 6]
    assert (request.model, request.request_id, request.priority, request.tenant, request.cache_salt) == (
        *("m", "r", -3, "t", "s"),
    )
    sampling = request.sampling
    assert list(sampling.stop) == ["END"]
    assert list(sampling.stop_token_ids) == [7]
    assert list(sampling.bad_words) == ["no", "never"]
    assert dict(sampling.logit_bias) == {3: -1.5}
    assert sampling.seed == 2**64 - 1
    assert list(make("x", stop=["a", "b"]).sampling.stop) == ["a", "b"]


def test_chat():
    request = make(
        chat=[
            {"role": "user", "content": "hi", "name": "Ann"},
            {"role": "assistant", "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "42", "tool_call_id": "1"},
        ],
        tools=[{"type": "function"}],
        template_arguments={"thinking": False},
        continue_final_message=True,
    )
    user, assistant, tool = request.chat.messages
    assert (user.role, user.content, user.name) == ("user", "hi", "Ann")
    assert assistant.tool_calls_json == '[{"id": "1"}]'
    assert not assistant.HasField("name")
    assert tool.tool_call_id == "1"
    assert request.chat.tools_json == '[{"type": "function"}]'
    assert request.chat.template_arguments_json == '{"thinking": false}'
    assert request.chat.continue_final_message is True
    assert not request.chat.HasField("add_generation_prompt")


def test_empty_prompts_reach_the_server():
    assert make("").WhichOneof("input") == "text"
    assert make(token_ids=[]).WhichOneof("input") == "token_ids"
    assert make(chat=[]).WhichOneof("input") == "chat"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "exactly one of text, chat and token_ids is needed, 0 were given"),
        ({"text": "x", "token_ids": [1]}, TypeError, "2 were given"),
        ({"text": "x", "temprature": 1}, TypeError, "unknown option temprature"),
        ({"text": "x", "tools": []}, TypeError, "tools only goes with chat"),
        ({"text": 3}, TypeError, "text: "),
        ({"text": "x", "temperature": "hot"}, TypeError, "temperature: "),
        ({"text": "x", "max_tokens": -1}, ValueError, "max_tokens: "),
        ({"text": "x", "seed": 2**64}, ValueError, "seed: "),
        ({"text": "x", "stop_token_ids": [1, -1]}, ValueError, "stop_token_ids: "),
        ({"text": "x", "stop": [1]}, TypeError, "stop: "),
        ({"text": "x", "logit_bias": {-1: 1.0}}, ValueError, "logit_bias: "),
        ({"token_ids": [2**32]}, ValueError, "ids: "),
        ({"token_ids": ["a"]}, TypeError, "ids: "),
        ({"chat": [{"role": "user", "contents": "x"}]}, TypeError, r"chat\[0\] has unknown key 'contents'"),
        ({"chat": [{"role": "user", "content": "x"}], "tools": [object()]}, TypeError, "tools: "),
    ],
)
def test_what_does_not_fit_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


def test_fill_unset_takes_only_what_was_open():
    sampling = pb.SamplingParams(temperature=0.0, stop=["a"])
    in_force = pb.SamplingParams(temperature=0.5, seed=9, max_tokens=7, stop=["b"], n=1)
    requests.fill_unset(sampling, in_force)
    assert sampling == pb.SamplingParams(temperature=0.0, seed=9, max_tokens=7, stop=["a"], n=1)


def test_other_requests():
    assert not requests.encode_request("x", None, None, None).HasField("add_special_tokens")
    assert requests.encode_request("x", False, True, "m").parse_special is True
    assert list(requests.decode_request([1, 2], False, None).token_ids) == [1, 2]
    assert requests.render_request([{"role": "user", "content": "x"}], "m", {}).model == "m"
    assert requests.count_request("a b", None, False, None, {}).add_special_tokens is False
    with pytest.raises(TypeError, match="exactly one"):
        requests.count_request(None, None, None, None, {})
    assert requests.drain_request(1.5).grace.ToMilliseconds() == 1500
    assert not requests.drain_request(None).HasField("grace")
