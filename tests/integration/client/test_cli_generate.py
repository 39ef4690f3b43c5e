"""The commands that talk to a server, against a fake door over real gRPC."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest
from click.testing import CliRunner, Result

from hundredfold.cli import generate, info
from hundredfold.rpc import RequestError
from support.fake_door import FakeDoor, expected_ids, expected_text
from support.ports import free_port


async def run(command, *arguments: str, door: FakeDoor | None = None, stdin: str | bytes = "") -> Result:
    port = door.port if door else free_port()
    flags = [*arguments, "--address", f"127.0.0.1:{port}"]
    return await asyncio.to_thread(lambda: CliRunner().invoke(command, flags, input=stdin))


async def test_text_goes_to_standard_output(door: FakeDoor):
    done = await run(
        generate.command, "hi", "--max-tokens", "8", "--temperature", "0", "--seed", "3", door=door
    )
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == expected_text(8) + "\n"
    sampling = door.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (8, 0.0, 3)
    assert {field.name for field, _ in sampling.ListFields()} == {"max_tokens", "temperature", "seed"}
    assert door.requests[0].text == "hi"


async def test_json_is_one_object(door: FakeDoor):
    done = await run(generate.command, "hi", "--max-tokens", "8", "--seed", "3", "--json", door=door)
    report = json.loads(done.stdout)
    assert report["text"] == expected_text(8)
    assert report["token_ids"] == expected_ids(8, 3)
    assert report["finish_reason"] == "length"
    assert report["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "cached_tokens": 0}
    assert report["timings"]["tokens_per_s"] == pytest.approx(7 / 0.5)
    assert 0 < report["timings"]["ttft_s"] <= report["timings"]["total_s"]
    assert report["seed"] == 3


async def test_options_reach_the_request(door: FakeDoor):
    flags = ["--chat", "--system", "be brief", "--stop", "a", "--stop", "b", "--top-p", "0.5", "--top-k", "4"]
    flags += [
        "--min-p",
        "0.1",
        "--repetition-penalty",
        "1.1",
        "--ignore-eos",
        "--model",
        "m",
        "--min-tokens",
        "2",
    ]
    done = await run(generate.command, "-", *flags, door=door, stdin="from a pipe")
    assert done.exit_code == 0, done.output
    request = door.requests[0]
    turns = [(m.role, m.content) for m in request.chat.messages]
    assert turns == [("system", "be brief"), ("user", "from a pipe")]
    assert list(request.sampling.stop) == ["a", "b"]
    assert request.sampling.ignore_eos is True
    assert (request.model, request.sampling.top_k, request.sampling.min_tokens) == ("m", 4, 2)


async def test_failures_are_one_line_with_their_own_exit_codes(door: FakeDoor):
    refused = await run(generate.command, "hi")
    assert refused.exit_code == 3
    assert "no server answers at 127.0.0.1:" in refused.stderr
    assert "hundredfold serve" in refused.stderr

    door.refusals = [RequestError(grpc.StatusCode.INVALID_ARGUMENT, "7 is above 1", "sampling.top_p")]
    wrong = await run(generate.command, "hi", "--top-p", "7", door=door)
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert wrong.stderr == "Error: invalid argument: 7 is above 1 (sampling.top_p)\n"

    door.refusals = [RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue\nfull", retry_after_s=2)]
    busy = await run(generate.command, "hi", door=door)
    assert busy.stderr == "Error: resource exhausted: queue full; try again in 2 s\n"

    starting = RequestError(grpc.StatusCode.UNAVAILABLE, "loading the model")
    door.refusals = [starting] * 100
    assert (await run(generate.command, "hi", door=door)).exit_code == 3
    door.refusals = []

    assert (await run(generate.command, "hi", "--max-tokens", "-1", door=door)).exit_code == 2
    assert (await run(generate.command, "hi", "--max-tokens", "many", door=door)).exit_code == 2
    assert (await run(generate.command, "-", door=door, stdin=b"\xff")).exit_code == 2
    late = await run(generate.command, "hi", "--max-tokens", "100000", "--timeout", "0.2", door=door)
    assert late.exit_code == 1
    assert "deadline exceeded" in late.stderr


async def test_info_shows_choices_and_why(door: FakeDoor):
    done = await run(info.command, door=door)
    assert done.exit_code == 0, done.output
    words = " ".join(done.stdout.split())
    for expected in (
        "tokenizer · ready",
        "worker · ready",
        "fake (llama)",
        "needs CUDA",
        "max_num_seqs",
        "failed",
    ):
        assert expected in words
    whole = json.loads((await run(info.command, "--json", door=door)).stdout)
    assert [service["service"] for service in whole["services"]] == ["tokenizer", "worker"]
    assert whole["services"][1]["runtime"]["selections"][0]["refused"][0]["reasons"] == [
        "needs CUDA",
        "head size 12",
    ]
    assert (await run(info.command)).exit_code == 3
