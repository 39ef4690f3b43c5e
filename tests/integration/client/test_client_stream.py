"""Both clients against a fake door: streaming, cancelling and resuming over real connections."""

from __future__ import annotations

import asyncio
import gc
import threading

import grpc
import pytest

from hundredfold import AsyncClient, Client
from hundredfold.client import (
    Cancelled,
    DeadlineExceeded,
    Delta,
    Finished,
    InvalidRequest,
    NotFound,
    NotPossible,
    Overloaded,
    PromptLogprobs,
    RetryPolicy,
    Started,
    Unavailable,
)
from hundredfold.rpc import RequestError
from support.cut_proxy import CuttableProxy
from support.eventually import eventually
from support.fake_door import FakeDoor, expected_ids, expected_text

QUICK = RetryPolicy(connect_s=5, resume_s=5, first_delay_s=0.02, max_delay_s=0.1)


async def test_events_in_order(door: FakeDoor):
    async with AsyncClient(f"127.0.0.1:{door.port}") as client:
        stream = client.generate("hi", max_tokens=12, seed=4, logprobs=0, prompt_logprobs=0)
        events = [event async for event in stream]
    kinds = [type(event) for event in events]
    assert kinds == [Started, PromptLogprobs, *[Delta] * 12, Finished]
    answer = stream.answer
    assert answer.text == expected_text(12)
    assert list(answer.token_ids) == expected_ids(12, 4)
    assert answer.finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert len(answer.choices[0].logprobs) == 12
    assert len(answer.prompt_logprobs.tokens) == 1
    assert stream.request_id == answer.started.request_id == "drawn-1"


async def test_sync_and_async_are_alike(door: FakeDoor):
    def blocking() -> tuple[str, list[str]]:
        with Client(f"127.0.0.1:{door.port}") as client:
            whole = client.generate(chat=[{"role": "user", "content": "hi"}], max_tokens=9, seed=1).result()
            pieces = list(client.generate(token_ids=[1], max_tokens=9, seed=1).texts())
            return whole.text, pieces

    text, pieces = await asyncio.to_thread(blocking)
    assert text == "".join(pieces) == expected_text(9)
    assert door.requests[0].chat.messages[0].content == "hi"
    async with AsyncClient(f"127.0.0.1:{door.port}") as client:
        assert (await client.generate("x", max_tokens=9, seed=1).result()).text == text
        assert [piece async for piece in client.generate("x", max_tokens=9).texts()] == pieces


async def test_generate_once(door: FakeDoor):
    async with AsyncClient(f"127.0.0.1:{door.port}") as client:
        answer = await client.generate_once("x", max_tokens=5, seed=2)
    assert (answer.text, list(answer.token_ids)) == (expected_text(5), expected_ids(5, 2))
    with_sync = await asyncio.to_thread(
        lambda: Client(f"127.0.0.1:{door.port}").generate_once("x", max_tokens=5, seed=2)
    )
    assert with_sync == answer


async def test_leaving_early_cancels_async(door: FakeDoor):
    door.step_s = 0.02
    async with AsyncClient(f"127.0.0.1:{door.port}") as client:
        async for event in client.generate("x", max_tokens=10_000):
            if isinstance(event, Delta):
                break
        await door.idle()

        async def stumble() -> None:
            async for event in client.generate("x", max_tokens=10_000):
                if isinstance(event, Delta):
                    raise KeyError

        with pytest.raises(KeyError):
            await stumble()
        gc.collect()
        await door.idle()

        async with client.generate("x", max_tokens=10_000) as stream:
            async for _ in stream:
                break
        await door.idle()

        reader = asyncio.create_task(client.generate("x", max_tokens=10_000).result())
        await asyncio.sleep(0.3)
        assert door.running
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await door.idle()
    assert (len(door.requests), door.completed) == (4, 0)


async def test_leaving_early_cancels_sync(door: FakeDoor):
    door.step_s = 0.02

    def leave_in_every_way() -> None:
        with Client(f"127.0.0.1:{door.port}") as client:
            for event in client.generate("x", max_tokens=10_000):
                if isinstance(event, Delta):
                    break
            kept = client.generate("x", max_tokens=10_000)
            for event in kept:
                if isinstance(event, Delta):
                    break
            with client.generate("x", max_tokens=10_000) as stream:
                next(stream.texts())
            dropped = iter(client.generate("x", max_tokens=10_000))
            next(dropped)
            del dropped

    await asyncio.to_thread(leave_in_every_way)
    await door.idle()
    assert (len(door.requests), door.completed) == (4, 0)


@pytest.mark.parametrize("client_kind", ["sync", "async"])
async def test_cut_connections_lose_and_repeat_nothing(
    door: FakeDoor, proxy: CuttableProxy, client_kind: str
):
    async def cut_now_and_then() -> None:
        for tries in range(1, 5):
            await eventually(lambda: len(door.requests) == tries)  # noqa: B023
            await asyncio.sleep(0.12)
            proxy.cut()

    def blocking() -> tuple[str, list[int], list[object], int]:
        with Client(proxy.address, retry=QUICK) as client:
            stream = client.generate("hi", max_tokens=120, logprobs=0, prompt_logprobs=0)
            events = list(stream)
            return stream.answer.text, list(stream.answer.token_ids), events, stream.resumes

    async def streaming() -> tuple[str, list[int], list[object], int]:
        async with AsyncClient(proxy.address, retry=QUICK) as client:
            stream = client.generate("hi", max_tokens=120, logprobs=0, prompt_logprobs=0)
            events: list[object] = [event async for event in stream]
            return stream.answer.text, list(stream.answer.token_ids), events, stream.resumes

    cutting = asyncio.create_task(cut_now_and_then())
    work = asyncio.to_thread(blocking) if client_kind == "sync" else streaming()
    text, ids, events, resumes = await work
    await cutting
    assert resumes >= 3
    assert text == expected_text(120)
    assert ids == expected_ids(
        120, 700
    )  # the seed that the first try drew, though each try might draw another
    kinds = [type(event) for event in events]
    assert kinds.count(Started) == kinds.count(PromptLogprobs) == kinds.count(Finished) == 1
    assert "".join(event.text for event in events if isinstance(event, Delta)) == text
    last = door.requests[-1]
    assert last.sampling.seed == 700
    assert last.sampling.temperature == 0.75
    assert last.resume.choices[0].num_chars > 0


async def test_resume_after_the_server_was_away(door: FakeDoor, proxy: CuttableProxy):
    async with AsyncClient(proxy.address, retry=QUICK) as client:
        text = ""
        stream = client.generate("hi", max_tokens=40)
        async for event in stream:
            if isinstance(event, Delta):
                text += event.text
                if len(event.token_ids) and not stream.resumes and len(text) > 10:
                    await proxy.down()
                    asyncio.get_running_loop().call_later(0.5, lambda: asyncio.ensure_future(proxy.up()))
    assert text == expected_text(40)
    assert stream.resumes == 1


async def test_a_request_id_of_ones_own_survives_a_resume(door: FakeDoor, proxy: CuttableProxy):
    async with AsyncClient(proxy.address, retry=QUICK) as client:
        stream = client.generate("hi", max_tokens=60, request_id="mine")
        async for event in stream:
            if isinstance(event, Delta) and stream.resumes == 0:
                proxy.cut()
    assert stream.answer.text == expected_text(60)
    assert {request.request_id for request in door.requests} == {"mine"}


async def test_a_stream_without_its_end_is_resumed(door: FakeDoor):
    door.drop_after = [3, 0, 2]
    async with AsyncClient(f"127.0.0.1:{door.port}", retry=QUICK) as client:
        stream = client.generate("hi", max_tokens=9)
        assert (await stream.result()).text == expected_text(9)
    assert stream.resumes == 3


async def test_giving_up_on_resuming(door: FakeDoor, proxy: CuttableProxy):
    impatient = RetryPolicy(connect_s=1, resume_s=0.3, first_delay_s=0.05)
    async with AsyncClient(proxy.address, retry=impatient) as client:
        stream = client.generate("hi", max_tokens=1000)

        async def lose_the_server() -> None:
            async for event in stream:
                if isinstance(event, Delta):
                    await proxy.down()

        with pytest.raises(Unavailable):
            await lose_the_server()
    assert stream.answer.finish_reason == "unfinished"
    assert stream.answer.token_ids


async def test_another_model_after_the_cut(door: FakeDoor, proxy: CuttableProxy):
    async with AsyncClient(proxy.address, retry=QUICK) as client:

        async def come_back_to_another() -> None:
            async for event in client.generate("hi", max_tokens=1000):
                if isinstance(event, Delta):
                    door.model = "another"
                    proxy.cut()

        with pytest.raises(NotPossible, match="cannot resume: the request began on model 'fake'"):
            await come_back_to_another()


async def test_no_server_at_first(door: FakeDoor, proxy: CuttableProxy):
    await proxy.down()
    async with AsyncClient(proxy.address, retry=QUICK) as client:
        asyncio.get_running_loop().call_later(0.4, lambda: asyncio.ensure_future(proxy.up()))
        assert (await client.generate("x", max_tokens=3).result()).text == expected_text(3)
    await proxy.down()
    async with AsyncClient(proxy.address, retry=RetryPolicy(connect_s=0.2)) as client:
        with pytest.raises(Unavailable):
            await client.generate("x").result()
        with pytest.raises(Unavailable):
            await client.encode("x")


async def test_refusals_carry_their_details(door: FakeDoor):
    async with AsyncClient(f"127.0.0.1:{door.port}", retry=QUICK) as client:
        door.refusals = [RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full", retry_after_s=1.5)]
        with pytest.raises(Overloaded) as busy:
            await client.generate("x").result()
        assert (busy.value.retry_after_s, busy.value.message) == (1.5, "queue full")
        bad = RequestError(grpc.StatusCode.INVALID_ARGUMENT, "top_p = 7 is above 1", "sampling.top_p")
        door.refusals = [bad]
        with pytest.raises(InvalidRequest) as wrong:
            await client.generate_once("x", top_p=7)
        assert (wrong.value.field, wrong.value.code) == ("sampling.top_p", grpc.StatusCode.INVALID_ARGUMENT)
        door.refusals = [bad]
        with pytest.raises(InvalidRequest) as wrong_sync:
            await asyncio.to_thread(lambda: Client(f"127.0.0.1:{door.port}").generate("x", top_p=7).result())
        assert wrong_sync.value.field == "sampling.top_p"


async def test_starting_servers_are_waited_for(door: FakeDoor):
    starting = RequestError(grpc.StatusCode.UNAVAILABLE, "loading the model", retry_after_s=0.1)
    async with AsyncClient(f"127.0.0.1:{door.port}", retry=QUICK) as client:
        door.refusals = [starting, starting]
        assert (await client.generate("x", max_tokens=3).result()).text == expected_text(3)
        door.refusals = [starting]
        assert await client.encode("a") == [1, 97]
        assert door.calls["encode"] == 2


async def test_abort_from_another_call(door: FakeDoor):
    async with AsyncClient(f"127.0.0.1:{door.port}", retry=QUICK) as client:
        stream = client.generate("x", max_tokens=10_000)

        async def abort_ones_own() -> None:
            async for event in stream:
                if isinstance(event, Started):
                    await client.abort(stream.request_id)

        with pytest.raises(Cancelled):
            await abort_ones_own()
        with pytest.raises(NotFound, match="no request nobody"):
            await client.abort("nobody")


async def test_the_deadline_ends_it(door: FakeDoor, proxy: CuttableProxy):
    async with AsyncClient(proxy.address, retry=QUICK) as client:
        with pytest.raises(DeadlineExceeded):
            await client.generate("x", max_tokens=10_000, timeout=0.3).result()
    await door.idle()


async def test_threads_share_one_client(door: FakeDoor):
    def many() -> list[str]:
        texts: list[str] = []
        with Client(f"127.0.0.1:{door.port}") as client:

            def one() -> None:
                texts.append(client.generate("x", max_tokens=20).result().text)

            threads = [threading.Thread(target=one) for _ in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return texts

    assert await asyncio.to_thread(many) == [expected_text(20)] * 16


async def test_everything_else(door: FakeDoor):
    address = f"127.0.0.1:{door.port}"

    def blocking() -> list[object]:
        with Client(address) as client:
            return [
                client.encode("ab", add_special_tokens=False),
                client.decode([104, 105]),
                client.render_chat([{"role": "user", "content": "x"}]).text,
                client.count_tokens("a b c"),
                client.count_tokens(chat=[{"role": "user", "content": "a b"}]),
                [service.service for service in client.info()],
                client.load().running,
                client.drain(0.5),
            ]

    async with AsyncClient(address) as client:
        from_async = [
            await client.encode("ab", add_special_tokens=False),
            await client.decode([104, 105]),
            (await client.render_chat([{"role": "user", "content": "x"}])).text,
            await client.count_tokens("a b c"),
            await client.count_tokens(chat=[{"role": "user", "content": "a b"}]),
            [service.service for service in await client.info()],
            (await client.load()).running,
            await client.drain(0.5),
        ]
    assert await asyncio.to_thread(blocking) == from_async
    assert from_async == [[97, 98], "hi", "<user>x", 3, 2, ["tokenizer", "worker"], 0, 0]
    assert door.calls["drain 500"] == 2


def test_an_async_client_needs_a_running_loop():
    with pytest.raises(RuntimeError, match="no running event loop"):
        AsyncClient()
