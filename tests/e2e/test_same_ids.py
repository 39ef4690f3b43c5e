"""Only the request decides its ids: not neighbours, chunks, cache hits, preemption, drafts or crashes."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from hundredfold.v1 import generation_pb2 as pb
from support.door import generate_all, request
from support.drafts import draft_until_accepted
from support.pace import TooSlow
from support.stack import Stack
from support.tiny_model import make_tiny_model

NUM_REQUESTS = 64
FRESH = itertools.count()
"""For salts: what was asked again finds nothing in the cache."""
CHUNKED = {"scheduler": {"max_num_batched_tokens": 48}}
NONE_IN_FLIGHT = {"scheduler": {"max_plans_in_flight": 1}}
SPECULATING = {"worker": {"speculative": "ngram", "num_speculative_tokens": 4}}
TIGHT_CACHE = {"worker": {"num_kv_blocks": 24, "block_size": 16, "max_model_len": 256}}


def make_requests(salt: str) -> list[pb.GenerateRequest]:
    """Half greedy, half sampled with a seed; prompts of 3 to 90 ids, some sharing a beginning."""
    rng = random.Random(7)
    shared = [rng.randrange(3, 400) for _ in range(40)]
    messages = []
    for number in range(NUM_REQUESTS):
        own = [rng.randrange(3, 400) for _ in range(rng.randrange(3, 50))]
        prompt = (shared + own) if number % 3 == 0 else own
        sampling: dict[str, object] = {"temperature": 0.0}
        if number % 2:
            sampling = {
                "temperature": 1.0,
                "seed": number,
                "top_k": 40 if number % 4 == 1 else 0,
                "top_p": 0.95,
            }
        if number % 5 == 0:
            sampling |= {"frequency_penalty": 0.4, "repetition_penalty": 1.2}
        message = request(prompt, max_tokens=rng.randrange(20, 60), ignore_eos=True, **sampling)
        message.cache_salt = salt
        messages.append(message)
    return messages


def ids_of(
    stack: Stack, messages: Sequence[pb.GenerateRequest], at_once: int = NUM_REQUESTS
) -> list[list[int]]:
    """Run the requests; every stream has to end well."""
    answers = asyncio.run(generate_all(stack.address, messages, at_once=at_once))
    for answer in answers:
        assert len(answer.finished) == 1
        assert answer.finished[0].usage.completion_tokens == len(answer.token_ids)
    return [answer.token_ids for answer in answers]


def wait_for_tokens(stack: Stack, count: int) -> None:
    """Return once the scheduler has handed out this many tokens more."""
    before = stack.load().totals["output_tokens"]
    while stack.load().totals["output_tokens"] < before + count:
        time.sleep(0.01)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """TINY with room for the longest request."""
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=512))


@pytest.fixture(scope="module")
def started(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Stack]]:
    """Starts stacks of given flags, each once, and stops them all at the end."""
    stacks: dict[str, Stack] = {}

    def start(flags: dict[str, dict[str, object]] | None = None) -> Stack:
        flags = {name: dict(values) for name, values in (flags or {}).items()}
        flags.setdefault("worker", {}).setdefault("dtype", "fp32")
        key = repr(flags)
        if key not in stacks:
            stacks[key] = Stack(tiny, tmp_path_factory.mktemp("stack"), flags)
            stacks[key].start()
            stacks[key].wait_ready()
        return stacks[key]

    yield start
    for stack in stacks.values():
        stack.stop()


@pytest.fixture(scope="module")
def alone(started: Callable[..., Stack]) -> list[list[int]]:
    """The ids of each request on its own, no cache to hit."""
    messages = make_requests("")
    for number, message in enumerate(messages):
        message.cache_salt = f"alone-{number}"
    return ids_of(started(), messages, at_once=1)


@pytest.mark.parametrize(
    "flags",
    [{}, CHUNKED, NONE_IN_FLIGHT, SPECULATING, SPECULATING | CHUNKED],
    ids=["batched", "chunked", "none-in-flight", "speculating", "speculating-chunked"],
)
def test_batched(started: Callable[..., Stack], alone: list[list[int]], flags: dict) -> None:
    assert ids_of(started(flags), make_requests("batched")) == alone


def test_speculating_a_few_at_a_time(started: Callable[..., Stack], alone: list[list[int]]) -> None:
    """So few that drafts pay; they are tried, accepted, and decide nothing."""
    stack = started(SPECULATING)
    assert ids_of(stack, make_requests("few"), at_once=3) == alone
    draft_until_accepted(stack)
    totals = stack.load().totals
    assert 0 < totals["accepted_tokens"] <= totals["drafted_tokens"]
    stack.wait_idle()


@pytest.mark.parametrize("flags", [{}, CHUNKED], ids=["whole", "chunked"])
def test_prefix_hit(started: Callable[..., Stack], alone: list[list[int]], flags: dict) -> None:
    stack = started(flags)
    assert ids_of(stack, make_requests("hit")) == alone
    answers = asyncio.run(generate_all(stack.address, make_requests("hit")))
    assert [answer.token_ids for answer in answers] == alone
    assert sum(answer.finished[0].usage.cached_tokens > 0 for answer in answers) >= NUM_REQUESTS // 3


@pytest.mark.parametrize(
    "flags",
    [
        TIGHT_CACHE,
        TIGHT_CACHE | NONE_IN_FLIGHT,
        {"worker": TIGHT_CACHE["worker"] | SPECULATING["worker"]},
    ],
    ids=["in-flight", "none-in-flight", "speculating"],
)
def test_preempted(started: Callable[..., Stack], alone: list[list[int]], flags: dict) -> None:
    stack = started(flags)
    before = stack.load().totals["preemptions"]
    for turn in range(5):  # clients that come one by one, on a busy machine, may fit one after the other
        assert ids_of(stack, make_requests(f"preempted {turn}")) == alone
        if stack.load().totals["preemptions"] - before >= 5:
            break
    assert stack.load().totals["preemptions"] - before >= 5
    stack.wait_idle()


@pytest.mark.parametrize("victim", ["worker", "scheduler"])
@pytest.mark.parametrize(
    "flags", [{}, NONE_IN_FLIGHT, SPECULATING], ids=["in-flight", "none-in-flight", "speculating"]
)
def test_replayed_after_kill(
    started: Callable[..., Stack], alone: list[list[int]], victim: str, flags: dict
) -> None:
    stack = started(flags)
    salt = f"replayed {next(FRESH)}"

    async def crash_halfway() -> list[list[int]]:
        running = asyncio.create_task(generate_all(stack.address, make_requests(salt)))
        await asyncio.to_thread(wait_for_tokens, stack, 300)
        await asyncio.to_thread(stack.kill, victim)
        if running.done():
            raise TooSlow("the crash came too late to prove anything")
        return [answer.token_ids for answer in await running]

    try:
        assert asyncio.run(crash_halfway()) == alone
    finally:
        stack.wait_ready()
    stack.wait_idle()


def test_unseeded_neighbours(started: Callable[..., Stack], alone: list[list[int]]) -> None:
    """Unseeded requests beside them draw something else each time and change nobody."""
    stack = started()
    noise = [
        request([5 + number, 9], max_tokens=40, temperature=1.0, ignore_eos=True) for number in range(32)
    ]
    mixed = [
        message for pair in zip(make_requests("mixed"), [*noise, *noise], strict=True) for message in pair
    ]
    answers = asyncio.run(generate_all(stack.address, mixed))
    assert [answer.token_ids for answer in answers[::2]] == alone
    assert answers[1].token_ids != answers[65].token_ids
