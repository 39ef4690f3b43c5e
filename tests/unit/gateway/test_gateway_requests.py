"""Bodies of requests: what each parameter becomes in the contract, and each wrong one's refusal by name."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from hundredfold.client import InvalidRequest
from hundredfold.client.requests import generate_request
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_gateway.errors import ApiError, from_door
from hundredfold_gateway.openai.chat import ChatRequest
from hundredfold_gateway.openai.completion import CompletionRequest
from hundredfold_gateway.openai.fields import param_of
from hundredfold_gateway.openai.messages import MAX_MESSAGES

HI = [{"role": "user", "content": "hi"}]


def chat(**body: Any) -> pb.GenerateRequest:
    asked = ChatRequest.read({"messages": HI, **body})
    return generate_request(None, asked.prompt(), None, asked.options())


def completion(**body: Any) -> pb.GenerateRequest:
    asked = CompletionRequest.read({"prompt": "p", **body}, 4)
    (prompt,) = asked.prompts
    if isinstance(prompt, str):
        return generate_request(prompt, None, None, asked.options())
    return generate_request(None, None, prompt, asked.options())


def refusal(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        ChatRequest.read({"messages": HI, **body}).prompt()
    return refused.value


SAMPLING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0}, {"temperature": 0}),
    ({"temperature": 1}, {"temperature": 1}),
    ({"top_p": 0.5}, {"top_p": 0.5}),
    ({"top_k": -1}, {"top_k": 0}),
    ({"top_k": 7}, {"top_k": 7}),
    ({"min_p": 0.25}, {"min_p": 0.25}),
    ({"seed": 5}, {"seed": 5}),
    ({"seed": -1}, {"seed": 2**64 - 1}),
    ({"stop": "a"}, {"stop": ["a"]}),
    ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
    ({"stop_token_ids": [3, 4]}, {"stop_token_ids": [3, 4]}),
    ({"include_stop_str_in_output": True}, {"include_stop": True}),
    ({"ignore_eos": True, "min_tokens": 3}, {"ignore_eos": True, "min_tokens": 3}),
    ({"bad_words": ["x"]}, {"bad_words": ["x"]}),
    ({"presence_penalty": -1, "frequency_penalty": 1.5}, {"presence_penalty": -1, "frequency_penalty": 1.5}),
    ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    ({"logit_bias": {"5": -100, "7": 0.5}}, {"logit_bias": {5: -100, 7: 0.5}}),
    ({"n": 3}, {"n": 3}),
    ({"beam_width": 4, "length_penalty": 0.5}, {"beam_width": 4, "length_penalty": 0.5}),
    ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    ({"add_special_tokens": False}, {"add_special_tokens": False}),
    ({"max_tokens": 9}, {"max_tokens": 9}),
]


@pytest.mark.parametrize(("body", "fields"), SAMPLING, ids=lambda value: str(value)[:40])
def test_sampling_parameters(body: dict[str, Any], fields: dict[str, Any]):
    assert chat(**body).sampling == pb.SamplingParams(**fields)
    assert completion(**{"max_tokens": 1, **body}).sampling == pb.SamplingParams(
        **{"max_tokens": 1, **fields}
    )


def test_null_is_the_same_as_absent():
    everything = dict.fromkeys(ChatRequest.model_fields.keys() - {"messages"})
    assert chat(**everything) == chat()


def test_what_belongs_to_a_chat():
    request = chat(
        max_completion_tokens=5,
        logprobs=True,
        top_logprobs=3,
        tools=[{"type": "function"}],
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="low",
        priority=-3,
        tenant="t",
        cache_salt="s",
        model="m",
        user="u",
        metadata={"a": "b"},
        parallel_tool_calls=True,
        response_format={"type": "text"},
        continue_final_message=False,
    )
    assert (request.sampling.max_tokens, request.sampling.logprobs) == (5, 3)
    assert request.chat.tools_json == '[{"type": "function"}]'
    assert request.chat.template_arguments_json == '{"enable_thinking": false, "reasoning_effort": "low"}'
    assert (request.priority, request.tenant, request.cache_salt, request.model) == (-3, "t", "s", "m")
    assert chat(logprobs=True).sampling.logprobs == 0
    assert not chat(tools=[{"type": "function"}], tool_choice="none").chat.HasField("tools_json")


def test_turns_of_every_kind():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []}
    request = chat(
        messages=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": parts, "name": "ann"},
            answer,
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
        ]
    )
    system, user, assistant, tool = request.chat.messages
    assert (system.role, user.content, user.name, assistant.content) == ("system", "a\nb", "ann", "")
    assert '"name": "f"' in assistant.tool_calls_json
    assert (tool.role, tool.content, tool.tool_call_id) == ("tool", "42", "c1")


def test_completions():
    assert completion().sampling.max_tokens == 16
    assert list(completion(prompt=[1, 2]).token_ids.ids) == [1, 2]
    request = completion(echo=True, logprobs=1, max_tokens=0)
    assert (request.sampling.logprobs, request.sampling.prompt_logprobs) == (1, 1)
    assert request.sampling.max_tokens == 0
    assert completion(echo=True, max_tokens=0).sampling.HasField("prompt_logprobs")
    assert not completion(echo=True, max_tokens=1).sampling.HasField("prompt_logprobs")
    assert completion(best_of=1, n=1).sampling.n == 1
    with pytest.raises(ApiError, match=r"an array of 5: above the limit max_prompts = 4"):
        CompletionRequest.read({"prompt": ["x"] * 5}, 4)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": 2.5}, "max_tokens", "invalid_type"),
    ({"max_tokens": 2**40}, "max_tokens", "invalid_value"),
    ({"max_tokens": 10**300}, "max_tokens", "invalid_value"),
    ({"max_tokens": [1]}, "max_tokens", "invalid_type"),
    ({"n": 0}, "n", "invalid_value"),
    ({"seed": 2**65}, "seed", "invalid_value"),
    ({"seed": "x"}, "seed", "invalid_type"),
    ({"stop": 5}, "stop", "invalid_type"),
    ({"stop": ["a", 5]}, "stop[1]", "invalid_type"),
    ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]", "invalid_value"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"-5": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"messages": [5]}, "messages[0]", "invalid_type"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]", "invalid_type"),
    ({"model": 5}, "model", "invalid_type"),
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"top_logprobs": 2}, "top_logprobs", ""),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", ""),
    ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "unsupported_parameter"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "unsupported_parameter"),
    ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "unsupported_parameter",
    ),
]


@pytest.mark.parametrize(("body", "param", "code"), WRONG, ids=lambda value: str(value)[:50])
def test_what_is_wrong_is_named(body: dict[str, Any], param: str, code: str):
    refused = refusal(**body)
    assert (refused.status, refused.param, refused.code or "") == (400, param, code)
    assert len(refused.message) < 400


def test_a_missing_prompt_and_options_without_a_stream():
    with pytest.raises(ApiError, match="Missing required parameter: 'prompt'"):
        CompletionRequest.read({}, 4)
    with pytest.raises(ApiError) as refused:
        CompletionRequest.read({"prompt": "x", "stream_options": {"include_usage": True}}, 4)
    assert (refused.value.param, refused.value.status) == ("stream_options", 400)
    assert refusal(temprature=1).message.endswith("did you mean 'temperature'?")


@pytest.mark.parametrize(
    "prompt", [5, {}, [], [1, "a"], [[1], "a"], [["a"]], [True], [1.5], [-1], [2**32], [[-1]]]
)
def test_prompts_of_the_wrong_kind(prompt: Any):
    with pytest.raises(ApiError) as refused:
        CompletionRequest.read({"prompt": prompt}, 4)
    assert (refused.value.status, refused.value.param) == (400, "prompt")


@pytest.mark.parametrize(
    ("field", "param"),
    [
        (None, None),
        ("sampling.top_p", "top_p"),
        ("sampling.stop[1]", "stop[1]"),
        ("sampling.max_tokens", "max_completion_tokens"),
        ("sampling.include_stop", "include_stop_str_in_output"),
        ("sampling.prompt_logprobs", "logprobs"),
        ("text", "prompt"),
        ("token_ids", "prompt"),
        ("token_ids[2]", "prompt[2]"),
        ("token_ids.ids[3]", "prompt[3]"),
        ("chat", "messages"),
        ("chat.messages", "messages"),
        ("chat.messages[2].content", "messages[2].content"),
        ("chat.messages[2].tool_calls_json", "messages[2].tool_calls"),
        ("chat.tools_json", "tools"),
        ("chat.template_arguments_json", "chat_template_kwargs"),
        ("chat.continue_final_message", "continue_final_message"),
        ("model", "model"),
    ],
)
def test_fields_of_the_contract_are_named_as_parameters(field: str | None, param: str | None):
    assert param_of(field, {"max_tokens": "max_completion_tokens"}) == param


def test_a_refusal_speaks_the_clients_words():
    failure = InvalidRequest(
        grpc.StatusCode.INVALID_ARGUMENT,
        "sampling.max_tokens = 0 is no use beside sampling.min_tokens = 4",
        "sampling.max_tokens",
    )
    error = from_door(failure, "max_completion_tokens")
    assert (error.status, error.message) == (400, "max_completion_tokens = 0 is no use beside min_tokens = 4")
    assert error.body()["error"]["param"] == "max_completion_tokens"


def test_a_conversation_without_end_is_refused_unread():
    """Each turn would be looked at on the event loop, beside everybody's streams."""
    turns = [{"role": "user", "content": "a"}] * MAX_MESSAGES
    ChatRequest.read({"messages": turns})
    with pytest.raises(ApiError, match=f"at most {MAX_MESSAGES}") as refused:
        ChatRequest.read({"messages": [*turns, {"role": 1}]})
    assert (refused.value.status, refused.value.param) == (400, "messages")
