"""Two workers, two doors: crash, hang and restart of any process under load, and no answer changes.

Every stream ends well, and in fp32 every id is the one that nobody disturbed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from hundredfold import AsyncClient
from hundredfold.v1 import generation_pb2 as pb
from support.door import generate_all, request
from support.pace import TooSlow
from support.stack import Stack
from support.tiny_model import make_tiny_model

NUM_STREAMS = 256
FRESH = itertools.count()
SILENCE_S = 5.0
PAUSE_S = 0.1
"""Between the requests of a client: what is restarted meanwhile needs processors too."""


def make_requests(salt: str) -> list[pb.GenerateRequest]:
    """Half greedy, half sampled; every third shares one of two beginnings."""
    rng = random.Random(11)
    stems = [[rng.randrange(3, 400) for _ in range(32)] for _ in range(2)]
    messages = []
    for number in range(NUM_STREAMS):
        own = [rng.randrange(3, 400) for _ in range(rng.randrange(3, 40))]
        prompt = stems[number % 2] + own if number % 3 == 0 else own
        sampling = {"temperature": 1.0, "seed": number, "top_k": 40} if number % 2 else {"temperature": 0.0}
        message = request(prompt, max_tokens=rng.randrange(40, 80), ignore_eos=True, **sampling)
        message.cache_salt = salt
        messages.append(message)
    return messages


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers and two doors over TINY, in fp32. Each test leaves all of it running."""
    tiny = str(make_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=512))
    flags = {
        "worker": {"dtype": "fp32", "max_num_seqs": 160, "num_kv_blocks": 900, "drain_grace_s": 5},
        "scheduler": {"worker_silence_s": SILENCE_S, "drain_grace_s": 2},
        "tokenizer": {"drain_grace_s": 2},
    }
    running = Stack(tiny, tmp_path_factory.mktemp("stack"), flags, workers=2, tokenizers=2)
    running.start()
    try:
        running.wait_ready()
        wait_workers(running, 2)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def undisturbed(stack: Stack) -> list[list[int]]:
    """The ids of each request when nothing happens; both workers had their part."""
    answers = asyncio.run(generate_all(stack.address_of("tokenizer"), make_requests("undisturbed")))
    assert [len(answer.finished) for answer in answers] == [1] * NUM_STREAMS
    return [answer.token_ids for answer in answers]


def wait_workers(stack: Stack, count: int, timeout_s: float = 60) -> None:
    """Until so many workers take new sequences."""
    deadline = time.monotonic() + timeout_s
    while sum(worker.takes_new for worker in stack.load().workers) != count:
        assert time.monotonic() < deadline, f"{stack.load().workers}\n{stack.log('scheduler')[-2000:]}"
        time.sleep(0.05)


def wait_running(stack: Stack, count: int) -> None:
    """Until each worker runs so many and some tokens were handed out."""
    before = stack.load().totals["output_tokens"]
    while True:
        load = stack.load()
        if (
            all(worker.running >= count for worker in load.workers)
            and load.totals["output_tokens"] > before + 500
        ):
            return
        time.sleep(0.01)


def kill(stack: Stack, service: str) -> None:
    stack.kill(service)


def hang(stack: Stack, service: str) -> None:
    """Stop the process for longer than it may be silent, then let it go on as if nothing had been."""
    stack.processes[service].send_signal(signal.SIGSTOP)
    time.sleep(SILENCE_S + 4)
    stack.processes[service].send_signal(signal.SIGCONT)


def pause(stack: Stack, service: str) -> None:
    """Stop the process for a while that nobody has to mind."""
    stack.processes[service].send_signal(signal.SIGSTOP)
    time.sleep(2)
    stack.processes[service].send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("harm", "victim"),
    [(kill, "worker"), (hang, "worker-2"), (kill, "scheduler"), (pause, "scheduler"), (pause, "worker")],
)
def test_every_stream_survives(
    stack: Stack, undisturbed: list[list[int]], harm: Callable[[Stack, str], None], victim: str
) -> None:
    """Raw streams, 256 at once: what the door hides needs no client that resumes."""
    losses = stack.load().totals["worker_losses"]

    async def harmed_halfway() -> list[list[int]]:
        messages = make_requests(f"{harm.__name__} {victim} {next(FRESH)}")
        running = asyncio.create_task(generate_all(stack.address_of("tokenizer"), messages))
        await asyncio.to_thread(wait_running, stack, 20)
        await asyncio.to_thread(harm, stack, victim)
        if running.done() and harm is not hang:
            raise TooSlow("it came too late to prove anything")
        answers = await running
        assert [len(answer.finished) for answer in answers] == [1] * NUM_STREAMS
        return [answer.token_ids for answer in answers]

    assert asyncio.run(harmed_halfway()) == undisturbed
    wait_workers(stack, 2)
    stack.wait_idle()
    if victim != "scheduler":
        lost = stack.load().totals["worker_losses"] - losses
        assert lost == (0 if harm is pause else 1)


def test_a_rolling_restart_of_everything(stack: Stack, undisturbed: list[list[int]]) -> None:
    """Each process is asked to stop and started again, one after the other, while clients keep coming: no
    request fails, no id differs, and no orderly stop counts as a crash.
    """
    messages = make_requests("rolling")
    codes: dict[str, int] = {}
    done = asyncio.Event()
    counted = itertools.count()
    resumed = 0

    async def keep_asking(client: AsyncClient) -> int:
        nonlocal resumed
        answered = 0
        while not done.is_set():
            number = next(counted) % NUM_STREAMS
            message = messages[number]
            sampling = {field.name: value for field, value in message.sampling.ListFields()}
            stream = client.generate(
                token_ids=list(message.token_ids.ids), cache_salt=message.cache_salt, **sampling
            )
            answer = await stream.result()
            resumed += stream.resumes
            assert list(answer.token_ids) == undisturbed[number]
            answered += 1
            await asyncio.sleep(PAUSE_S)
        return answered

    async def roll() -> None:
        for name in stack.names:
            codes[name] = await asyncio.to_thread(stack.restart, name)
            await asyncio.to_thread(stack.wait_ready)
            await asyncio.to_thread(wait_workers, stack, 2)
        done.set()

    async def both() -> list[int]:
        async with AsyncClient(stack.address) as client:
            asking = [asyncio.create_task(keep_asking(client)) for _ in range(48)]
            try:
                await roll()
            finally:
                done.set()
            return await asyncio.gather(*asking)

    answered = asyncio.run(both())
    assert min(answered) >= 1
    assert sum(answered) >= 100
    assert set(codes.values()) == {0}, codes
    assert stack.load().totals["worker_losses"] == 0
    stack.wait_idle()
