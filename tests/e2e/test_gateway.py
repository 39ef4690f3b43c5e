"""The gateway before the real services: tokenizers killed under its streams, restarts, what lm-eval needs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from hundredfold import Client
from hundredfold.client import RetryPolicy
from hundredfold.v1 import generation_pb2_grpc
from support.door import request
from support.nursery import nursery
from support.pace import at_most
from support.ports import free_port
from support.stack import GRACE_S, Stack

STREAMS = 24
TOKENS = 200


class Gateway:
    """A gateway's process before a stack's doors."""

    def __init__(self, stack: Stack, *flags: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = stack.directory / "gateway.log"
        self._arguments = [
            *("--listen", self.url.removeprefix("http://")),
            *("--control-listen", f"127.0.0.1:{free_port()}", "--door", stack.address),
            *("--recovery-grace-s", str(GRACE_S), *flags),
        ]
        self.start()

    def start(self) -> None:
        self.process = nursery("hundredfold_gateway").start(self._arguments, self.log)
        deadline = time.monotonic() + 240
        while self.health() != 200:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def health(self) -> int:
        try:
            return int(urllib.request.urlopen(f"{self.url}/health", timeout=5).status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def post(self, path: str, **body: Any) -> Any:
        return json.loads(self._open(path, body).read())

    def stream(self, **body: Any) -> tuple[str, str]:
        """The text of a streamed completion, and its last line."""
        text, last = "", ""
        for line in self._open("/v1/completions", {**body, "stream": True}):
            if line.strip():
                last = line.decode().removeprefix("data: ").strip()
            if last.startswith('{"id"') and line.strip():
                text += json.loads(last)["choices"][0]["text"]
        return text, last

    def choices(self, **body: Any) -> Iterator[Any]:
        """The choices of a streamed completion's chunks."""
        for line in self._open("/v1/completions", {**body, "stream": True}):
            if line.startswith(b'data: {"id"'):
                yield from json.loads(line.removeprefix(b"data: "))["choices"]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def _open(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        return urllib.request.urlopen(request, timeout=120)


@pytest.fixture(scope="module")
def stack(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two doors; each test leaves them as it found them, though maybe as other processes."""
    directory = tmp_path_factory.mktemp("gateway")
    running = Stack(tiny_model, directory, {"worker": {"dtype": "fp32"}}, tokenizers=2)
    running.start()
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def gateway(stack: Stack) -> Iterator[Gateway]:
    running = Gateway(stack)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def one_stream(gateway: Gateway, number: int) -> tuple[str, str]:
    return gateway.stream(
        prompt=f"Once {number}", max_tokens=TOKENS, temperature=1.0, seed=number, ignore_eos=True
    )


def under_streams(gateway: Gateway, trouble: Callable[[], None]) -> list[tuple[str, str]]:
    """What ``STREAMS`` streams end with while something happens."""
    with ThreadPoolExecutor(STREAMS) as pool:
        asked = [pool.submit(one_stream, gateway, number) for number in range(STREAMS)]
        troubling = threading.Thread(target=trouble)
        troubling.start()
        ends = [stream.result() for stream in asked]
        troubling.join()
    return ends


def test_tokenizers_are_killed_under_the_streams(stack: Stack, gateway: Gateway):
    undisturbed = under_streams(gateway, lambda: None)
    assert {last for _, last in undisturbed} == {"[DONE]"}

    def kill_each() -> None:
        for name in ("tokenizer", "tokenizer-2"):
            time.sleep(0.3)
            stack.kill(name)
            time.sleep(0.7)

    before = stack.load().running
    assert before == 0
    assert under_streams(gateway, kill_each) == undisturbed
    stack.wait_ready()
    assert gateway.health() == 200
    stack.wait_idle()


def test_a_killed_door_is_told_to_raw_stubs_and_made_good_by_clients(stack: Stack, gateway: Gateway):
    """Streams of generated stubs end UNAVAILABLE, never as if they were done; those of `hundredfold.Client`
    and of the gateway go on at the other door.
    """
    doors = [stack.address_of(name) for name in ("tokenizer", "tokenizer-2")]
    asked = {"max_tokens": 400, "temperature": 0.0, "ignore_eos": True}
    with (
        Client(",".join(doors), retry=RetryPolicy(resume_s=GRACE_S)) as client,
        grpc.insecure_channel(doors[0]) as channel,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        wanted = client.generate("Once", **asked).result().text
        before = stack.load().totals["output_tokens"]
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        raw = [stub.Generate(request("Once", **asked)) for _ in range(4)]
        kinds = [next(stream).WhichOneof("event") for stream in raw]
        streams = [client.generate("Once", **asked) for _ in range(STREAMS // 2)]
        answers = [pool.submit(stream.result) for stream in streams]
        over_http = [pool.submit(gateway.stream, prompt="Once", **asked) for _ in range(STREAMS // 2)]
        while stack.load().totals["output_tokens"] < before + 1000:
            time.sleep(0.02)
        stack.kill("tokenizer")
        for stream in raw:
            with pytest.raises(grpc.RpcError) as lost:
                kinds += [event.WhichOneof("event") for event in stream]
            assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "finished" not in kinds
        assert {answer.result().text for answer in answers} == {wanted}
        assert {answer.result() for answer in over_http} == {(wanted, "[DONE]")}
        assert sum(stream.resumes for stream in streams) >= 1
    stack.wait_ready()
    stack.wait_idle()


def test_a_rolling_restart_of_everything_fails_nothing(stack: Stack, gateway: Gateway):
    """Worker, scheduler and both doors one after the other while requests keep coming, then the gateway."""
    undisturbed = under_streams(gateway, lambda: None)
    done = threading.Event()

    def keep_asking(number: int) -> list[tuple[str, str]]:
        answers = []
        while not done.is_set():
            answers.append(one_stream(gateway, number))
            time.sleep(0.1)  # what is restarted meanwhile needs processors too
        return answers

    with ThreadPoolExecutor(STREAMS) as pool:
        asking = [pool.submit(keep_asking, number) for number in range(STREAMS)]
        try:
            for name in stack.names:
                assert stack.restart(name) == 0, name
                stack.wait_ready()
        finally:
            done.set()
        for number, answers in enumerate(asking):
            assert set(answers.result()) == {undisturbed[number]}
    ends: list[tuple[str, str]] = []
    streaming = threading.Thread(target=lambda: ends.extend(under_streams(gateway, lambda: None)))
    before = stack.load().totals["requests"]
    streaming.start()
    while stack.load().totals["requests"] < before + STREAMS:
        assert streaming.is_alive()
        time.sleep(0.02)
    assert gateway.stop() == 0
    streaming.join()
    assert ends == undisturbed, "a drain lets streams finish"
    gateway.start()
    assert gateway.stream(prompt="x", max_tokens=2)[1] == "[DONE]"


def test_a_client_that_vanishes_is_out_of_the_scheduler_within_a_second(stack: Stack, gateway: Gateway):
    code = (
        "import sys, urllib.request as r\n"
        'body = b\'{"prompt": "x", "max_tokens": 1800, "ignore_eos": true, "stream": true}\'\n'
        "got = r.urlopen(r.Request(sys.argv[1], body, {'content-type': 'application/json'}))\n"
        "[got.readline() for _ in range(3)]; print('streaming', flush=True); input()\n"
    )
    command = [sys.executable, "-c", code, f"{gateway.url}/v1/completions"]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"streaming\n"
    os.kill(client.pid, signal.SIGKILL)
    with at_most(2):  # seconds; one, on a machine that is not busy
        client.wait()
        stack.wait_idle()


def test_scores_are_those_of_the_door(stack: Stack, gateway: Gateway):
    text = "Hé <|im_end|> 😀!"
    body = gateway.post(
        "/v1/completions", prompt=text, echo=True, logprobs=2, max_tokens=3, temperature=0, ignore_eos=True
    )
    (choice,) = body["choices"]
    with Client(stack.address) as client:
        ids = client.encode(text)
        whole = client.generate(
            token_ids=ids, prompt_logprobs=2, logprobs=2, max_tokens=3, temperature=0, ignore_eos=True
        ).result()
    scores = choice["logprobs"]
    wanted = [entry.token.logprob for entry in whole.prompt_logprobs.tokens[1:]]
    wanted += [entry.token.logprob for entry in whole.choices[0].logprobs]
    assert scores["token_logprobs"] == [None, *wanted]
    assert choice["text"] == text + whole.text
    assert len(scores["tokens"]) == len(ids) + 3
    places = [*scores["text_offset"], len(choice["text"])]
    for token, start, end in zip(scores["tokens"], places, places[1:], strict=False):
        if not token.startswith("bytes:"):
            assert choice["text"][start:end] == token
    assert body["usage"]["prompt_tokens"] == len(ids)
    only = gateway.post("/v1/completions", prompt=[ids, ids[:4]], echo=True, logprobs=0, max_tokens=0)
    assert [len(c["logprobs"]["tokens"]) for c in only["choices"]] == [len(ids), 4]
    assert only["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx(
        scores["token_logprobs"][: len(ids)]
    )
    assert only["usage"]["completion_tokens"] == 0
    assert gateway.post("/detokenize", tokens=ids) == {"prompt": text}


def test_a_prompt_that_begins_inside_a_character(stack: Stack, gateway: Gateway):
    text = "\U00013080 is old"  # several tokens of the default model make this one character
    with Client(stack.address) as client:
        first = client.decode(client.encode(text)[:1])
    assert first == "\ufffd"
    body = gateway.post("/v1/completions", prompt=text, echo=True, logprobs=0, max_tokens=0)
    tokens = body["choices"][0]["logprobs"]["tokens"]
    raw = b"".join(
        bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
        if token.startswith("bytes:")
        else token.encode()
        for token in tokens
    )
    assert tokens[0].startswith("bytes:\\xf0")
    assert raw.decode() == text


def test_choices_of_several_prompts(gateway: Gateway):
    asked = {"prompt": ["x", "y"], "n": 3, "seed": 1, "temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
    whole = gateway.post("/v1/completions", **asked)
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    texts = [choice["text"] for choice in whole["choices"]]
    assert len(set(texts)) == 6
    assert whole["usage"]["completion_tokens"] == 48
    assert whole["usage"]["prompt_tokens"] == 2
    assert [choice["text"] for choice in gateway.post("/v1/completions", **asked)["choices"]] == texts
    streamed = [""] * 6
    for choice in gateway.choices(**asked):
        streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_the_doors_refusals_name_the_parameter(gateway: Gateway):
    def refusal(**body: Any) -> tuple[int, str]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            gateway.post("/v1/completions", **{"prompt": "x", "max_tokens": 2, **body})
        return refused.value.code, json.loads(refused.value.read())["error"]["param"]

    assert refusal(temperature=-1) == (400, "temperature")
    assert refusal(prompt="") == (400, "prompt")
    assert refusal(prompt=[]) == (400, "prompt")
    assert refusal(prompt=[600]) == (400, "prompt[0]")
    assert refusal(prompt="x" * 5000) == (400, "prompt")
    assert refusal(model="nope") == (404, "model")
    assert refusal(logprobs=50) == (400, "logprobs")
    assert refusal(stop=["a", ""]) == (400, "stop[1]")
    assert refusal(logit_bias={"5": 500}) == (400, "logit_bias[5]")
