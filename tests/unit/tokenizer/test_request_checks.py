"""The fields around prompt and sampling: names, tenants, salts, prompts of ids, limits, resume."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from hundredfold.rpc import RequestError
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_tokenizer.validation.chat import check_chat
from hundredfold_tokenizer.validation.fields import check_envelope, check_model
from hundredfold_tokenizer.validation.request import ModelLimits, check_prompt_ids, check_resume
from hundredfold_tokenizer.validation.sampling import check_sampling

HERE, THERE, ELSEWHERE = "ipv4:127.0.0.1:5000", "ipv4:10.0.0.7:5000", "ipv4:10.0.0.8:5000"
LIMITS = ModelLimits(max_model_len=64, vocab_size=512, max_cache_tokens=48)


def refused(call: Any, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call()
    assert caught.value.code is code
    return caught.value


def test_models_go_by_name() -> None:
    check_model(None, "tiny")
    check_model("tiny", "tiny")
    error = refused(lambda: check_model("other", "tiny"), grpc.StatusCode.NOT_FOUND)
    assert "other" in error.message
    assert "tiny" in error.message
    refused(lambda: check_model("", "tiny"), grpc.StatusCode.NOT_FOUND)
    assert len(refused(lambda: check_model("x" * 10**6, "tiny"), grpc.StatusCode.NOT_FOUND).message) < 1000


@pytest.mark.parametrize("field", ["adapter_id", "grammar"])
def test_reserved_fields(field: str) -> None:
    message = pb.GenerateRequest()
    if field == "grammar":
        message.grammar.regex = "(a+)+$"
    else:
        message.adapter_id = "../../etc/passwd"
    assert refused(lambda: check_envelope(message, HERE), grpc.StatusCode.UNIMPLEMENTED).field == field


@pytest.mark.parametrize("request_id", ["", "x" * 129, "a b", "ü", "line\nbreak", "\x00"])
def test_bad_request_ids(request_id: str) -> None:
    assert (
        refused(lambda: check_envelope(pb.GenerateRequest(request_id=request_id), HERE)).field == "request_id"
    )


def test_request_ids_are_drawn() -> None:
    drawn = {check_envelope(pb.GenerateRequest(), HERE).request_id for _ in range(50)}
    assert len(drawn) == 50
    assert check_envelope(pb.GenerateRequest(request_id="mine"), HERE).request_id == "mine"


@pytest.mark.parametrize("priority", [-101, 101, 2**31 - 1, -(2**31)])
def test_bad_priorities(priority: int) -> None:
    assert refused(lambda: check_envelope(pb.GenerateRequest(priority=priority), HERE)).field == "priority"


@pytest.mark.parametrize("field", ["tenant", "cache_salt"])
def test_long_names(field: str) -> None:
    message = pb.GenerateRequest(**{field: "x" * 257})  # type: ignore[arg-type]
    assert refused(lambda: check_envelope(message, HERE)).field == field


@pytest.mark.parametrize(
    "peer", [HERE, "ipv6:%5B::1%5D:5000", "unix:/run/x.sock", "unix:", "ipv6:[::ffff:127.0.0.1]:1"]
)
def test_tenants_are_trusted_on_this_machine(peer: str) -> None:
    assert check_envelope(pb.GenerateRequest(tenant="a"), peer).tenant == "a"


@pytest.mark.parametrize("peer", [THERE, "ipv6:%5B2001:db8::1%5D:5000", "ipv4:127.0.0.1.evil.example:1", ""])
def test_tenants_of_others_are_their_addresses(peer: str) -> None:
    """Item 40: whoever comes from elsewhere cannot name itself as somebody else."""
    assert check_envelope(pb.GenerateRequest(tenant="a"), peer).tenant != "a"


def test_salts_keep_tenants_apart() -> None:
    """Item 40: a salt that the client chooses never selects another tenant's space."""

    def salt(peer: str, tenant: str = "", salt: str = "") -> bytes:
        return check_envelope(pb.GenerateRequest(tenant=tenant, cache_salt=salt), peer).cache_salt

    assert salt(HERE) == b""
    different = {
        salt(HERE, "a"), salt(HERE, "b"), salt(HERE, "a", "b"), salt(HERE, "", "ab"), salt(HERE, "ab"),
        salt(THERE), salt(ELSEWHERE), salt(THERE, "", "a"), salt(HERE, "a", "x" * 200),
    }  # fmt: skip
    assert len(different) == 9
    assert salt(HERE, "a", "b") == salt(HERE, "a", "b")
    assert all(len(item) == 32 for item in different)


def test_prompts_of_ids() -> None:
    """Items 82, 108, 121: unknown ids, no ids, too many ids."""
    assert list(check_prompt_ids(pb.TokenIds(ids=[1, 511]), LIMITS)) == [1, 511]
    error = refused(lambda: check_prompt_ids(pb.TokenIds(ids=[1, 512, 7]), LIMITS))
    assert error.field == "token_ids.ids[1]"
    assert "512" in error.message
    assert refused(lambda: check_prompt_ids(pb.TokenIds(), LIMITS)).field == "token_ids"
    long = refused(lambda: check_prompt_ids(pb.TokenIds(ids=[1] * 64), LIMITS))
    assert "64 tokens" in long.message
    assert "max_model_len = 64" in long.message
    cache = refused(lambda: check_prompt_ids(pb.TokenIds(ids=[1] * 49), LIMITS))
    assert "49 tokens" in cache.message
    assert "48" in cache.message


def test_room_for_the_answer() -> None:
    """Item 121: a prompt one below the limit leaves one token."""
    limits = ModelLimits(max_model_len=64, vocab_size=512, max_cache_tokens=1000)
    assert limits.room(63) == 1
    assert limits.room(10) == 54
    assert LIMITS.room(48) == 1
    assert LIMITS.room(40) == 9


def test_room_for_beams_is_what_the_scheduler_gives_them() -> None:
    """The started event tells the number that counts: the scheduler's own, by its own limits."""
    ours = ModelLimits(max_model_len=300, vocab_size=512, max_cache_tokens=320, block_size=16)
    its = WorkerLimits("f", 300, 512, 16, 20, 8, 64)
    for beams in (1, 2, 4, 8):
        for length in range(1, 300):
            if (room := its.room_for_output(length, beams)) > 0:
                assert ours.room(length, beams) == room


@pytest.mark.parametrize(
    ("resume", "field"),
    [
        ({"choices": [{"index": 1}]}, "resume.choices[0].index"),
        ({"choices": [{"index": 0}, {"index": 0}]}, "resume.choices"),
        ({"choices": [{"token_ids": [1] * 11}]}, "resume.choices[0].token_ids"),
        ({"choices": [{"token_ids": [1, 512]}]}, "resume.choices[0].token_ids[1]"),
    ],
)
def test_bad_resumes(resume: dict[str, Any], field: str) -> None:
    message = pb.GenerateRequest(resume=resume, sampling={"seed": 1})
    sampling = check_sampling(message.sampling, {}, 512)
    assert refused(lambda: check_resume(message, sampling, 10, LIMITS)).field == field


def test_resume_needs_the_seed_where_it_matters() -> None:
    message = pb.GenerateRequest(resume={"choices": [{"token_ids": [5]}]})
    sampled = check_sampling(message.sampling, {}, 512)
    assert refused(lambda: check_resume(message, sampled, 10, LIMITS)).field == "sampling.seed"
    message.sampling.temperature = 0
    greedy = check_sampling(message.sampling, {}, 512)
    assert list(check_resume(message, greedy, 10, LIMITS)[0].token_ids) == [5]


def test_resume_is_by_choice() -> None:
    choices = [{"index": 2, "token_ids": [5], "num_chars": 1}, {"index": 0}]
    message = pb.GenerateRequest(resume={"choices": choices}, sampling={"seed": 1, "n": 3})
    sampling = check_sampling(message.sampling, {}, 512)
    received = check_resume(message, sampling, 10, LIMITS)
    assert {index: list(choice.token_ids) for index, choice in received.items()} == {2: [5], 0: []}
    for bad, field in (({"index": 3}, "resume.choices[1].index"), ({"index": 2}, "resume.choices[1].index")):
        twice = pb.GenerateRequest(resume={"choices": [choices[0], bad]}, sampling=message.sampling)
        assert refused(lambda m=twice: check_resume(m, sampling, 10, LIMITS)).field == field


def turn(role: str = "user", content: str = "hi", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        ({}, "chat.messages"),
        ({"messages": [turn("")]}, "chat.messages[0].role"),
        ({"messages": [turn(), turn("<|im_end|>")]}, "chat.messages[1].role"),
        ({"messages": [turn("x" * 65)]}, "chat.messages[0].role"),
        ({"messages": [turn()] * 4097}, "chat.messages"),
        ({"messages": [turn(content="x" * 80_000)]}, "chat"),
        ({"messages": [turn()], "tools_json": "{"}, "chat.tools_json"),
        ({"messages": [turn()], "tools_json": "{}"}, "chat.tools_json"),
        ({"messages": [turn()], "tools_json": "[NaN]"}, "chat.tools_json"),
        ({"messages": [turn()], "tools_json": "[" * 5000}, "chat.tools_json"),
        ({"messages": [turn()], "tools_json": '["\\ud800"]'}, "chat.tools_json"),
        ({"messages": [turn()], "template_arguments_json": "[]"}, "chat.template_arguments_json"),
        (
            {"messages": [turn()], "template_arguments_json": '{"messages": 1}'},
            "chat.template_arguments_json",
        ),
        ({"messages": [turn(tool_calls_json="1")]}, "chat.messages[0].tool_calls_json"),
        ({"messages": [turn()], "continue_final_message": True}, "chat.continue_final_message"),
        (
            {"messages": [turn("assistant")], "continue_final_message": True, "add_generation_prompt": True},
            "chat.add_generation_prompt",
        ),
    ],
)
def test_bad_chats(chat: dict[str, Any], field: str) -> None:
    assert refused(lambda: check_chat(pb.ChatInput(**chat), 60_000)).field == field


def test_chats_as_templates_read_them() -> None:
    message = pb.ChatInput(
        messages=[
            turn(),
            turn("assistant", "", tool_calls_json='[{"id": "1"}]'),
            turn("tool", "42", tool_call_id="1"),
        ],
        tools_json='[{"type": "function"}]',
        template_arguments_json='{"enable_thinking": false}',
    )
    chat = check_chat(message, 16_000)
    assert chat.messages[1]["tool_calls"] == [{"id": "1"}]
    assert chat.messages[2]["tool_call_id"] == "1"
    assert "name" not in chat.messages[0]
    assert chat.tools == [{"type": "function"}]
    assert chat.arguments == {"enable_thinking": False}
    assert chat.add_generation_prompt
    continued = check_chat(pb.ChatInput(messages=[turn("assistant")], continue_final_message=True), 16_000)
    assert not continued.add_generation_prompt
