"""A request over several connections, without any: what is sent next, what is dropped, when it gives up."""

from __future__ import annotations

import grpc
import pytest

from hundredfold.client.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidRequest,
    NotPossible,
    RequestFailed,
    Unavailable,
)
from hundredfold.client.retry import Attempts, RetryPolicy
from hundredfold.client.session import GenerateSession
from hundredfold.v1 import generation_pb2 as pb


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Broken(grpc.RpcError):
    """A failed call, as both grpc APIs show it."""

    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple:
        return ()


LOST = Broken(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def session(
    request: pb.GenerateRequest, timeout_s: float | None = None, clock: Clock | None = None, **policy
):
    return GenerateSession(request, Attempts(RetryPolicy(**policy), timeout_s, clock or Clock()))


def started(seed: int = 5, **fields) -> pb.GenerateResponse:
    fields = {"request_id": "r1", "model": "m", "prompt_tokens": 3} | fields
    return pb.GenerateResponse(
        started=pb.Started(sampling=pb.SamplingParams(seed=seed, temperature=0.5), **fields)
    )


def delta(text: str, *ids: int, index: int = 0) -> pb.GenerateResponse:
    return pb.GenerateResponse(delta=pb.Delta(index=index, text=text, token_ids=ids))


def finished(index: int = 0) -> pb.GenerateResponse:
    return pb.GenerateResponse(finished=pb.Finished(index=index, reason=pb.FINISH_REASON_STOP))


def test_before_the_start_the_request_is_sent_as_it_was():
    request = pb.GenerateRequest(text="x")
    running = session(request)
    assert running.next_request() == request
    running.failed(LOST)
    assert running.next_request() == request
    assert running.resumes == 0


def test_resume_fixes_the_drawn_values_and_says_what_arrived():
    running = session(pb.GenerateRequest(text="x", sampling=pb.SamplingParams(max_tokens=9, stop=["z"])))
    for event in (started(), delta("a😀", 1, 2), delta("", 3), delta("é")):
        assert running.accept(event) is not None
    running.failed(LOST)
    again = running.next_request()
    assert again.text == "x"
    assert again.sampling == pb.SamplingParams(max_tokens=9, stop=["z"], seed=5, temperature=0.5)
    assert again.resume == pb.Resume(choices=[pb.ReceivedChoice(index=0, token_ids=[1, 2, 3], num_chars=3)])
    assert not again.HasField("request_id")
    assert running.resumes == 0
    running.accept(started(request_id="r2"))
    assert running.resumes == 1


def test_what_comes_twice_is_dropped():
    running = session(pb.GenerateRequest(text="x", sampling=pb.SamplingParams(n=2)))
    running.accept(started())
    scores = pb.GenerateResponse(prompt_logprobs=pb.PromptLogprobs(tokens=[pb.TokenLogprobs()]))
    assert running.accept(scores) is not None
    running.accept(delta("a", 1))
    running.accept(finished())
    assert not running.complete
    running.failed(LOST)
    assert running.accept(started(request_id="r2")) is None
    assert running.request_id == "r2"
    assert running.accept(scores) is None
    assert running.accept(delta("late", 2)) is None
    assert running.accept(finished()) is None
    running.accept(delta("b", 7, index=1))
    running.accept(finished(1))
    assert running.complete
    answer = running.answer()
    assert [(c.text, c.token_ids, c.finish_reason) for c in answer.choices] == [
        ("a", (1,), "stop"),
        ("b", (7,), "stop"),
    ]
    assert answer.started.request_id == "r1"


def test_an_unfinished_answer_says_so():
    running = session(pb.GenerateRequest(text="x"))
    running.accept(started())
    running.accept(delta("a", 1))
    assert running.answer().text == "a"
    assert running.answer().finish_reason == "unfinished"
    assert session(pb.GenerateRequest(text="x")).answer().text == ""


def test_another_prompt_or_model_is_not_resumed():
    for other in ({"model": "other"}, {"prompt_tokens": 4}):
        running = session(pb.GenerateRequest(text="x"))
        running.accept(started())
        running.failed(LOST)
        with pytest.raises(NotPossible, match="cannot resume"):
            running.accept(started(**other))


def test_only_unavailable_is_tried_again():
    for code, kind in (
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.INTERNAL, RequestFailed),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        (grpc.StatusCode.ALREADY_EXISTS, AlreadyExists),
    ):
        with pytest.raises(kind) as caught:
            session(pb.GenerateRequest(text="x")).failed(Broken(code, "why"))
        assert (caught.value.code, caught.value.message) == (code, "why")


def test_an_id_still_in_use_is_waited_for_when_resuming():
    running = session(pb.GenerateRequest(text="x", request_id="mine"))
    running.accept(started(request_id="mine"))
    running.failed(LOST)
    assert running.next_request().request_id == "mine"
    assert running.failed(Broken(grpc.StatusCode.ALREADY_EXISTS)) > 0


def test_delays_grow_and_the_budget_ends():
    clock = Clock()
    running = session(
        pb.GenerateRequest(text="x"), clock=clock, connect_s=10, first_delay_s=0.1, max_delay_s=2
    )
    delays: list[float] = []

    def keep_trying() -> None:
        for _ in range(100):
            delays.append(running.failed(LOST))
            clock.now += delays[-1]

    with pytest.raises(Unavailable):
        keep_trying()
    assert 0.08 <= delays[0] <= 0.12
    assert max(delays) <= 2.4
    # The one delay that would have passed the budget was not slept: it is at most 2 s and a fifth.
    assert 10 - 2.4 <= sum(delays) <= 10
    assert len(delays) < 20


def test_progress_renews_the_budget_but_a_bare_start_does_not():
    clock = Clock()
    running = session(pb.GenerateRequest(text="x"), clock=clock, resume_s=5)
    running.accept(started())
    running.failed(LOST)
    clock.now += 4.5
    running.accept(started())
    running.failed(LOST)
    clock.now += 1
    with pytest.raises(Unavailable):
        running.failed(LOST)
    running.accept(delta("a", 1))
    assert running.failed(LOST) > 0


def test_no_retry_when_the_policy_says_so():
    with pytest.raises(Unavailable, match="Socket closed"):
        session(pb.GenerateRequest(text="x"), connect_s=0).failed(LOST)
    running = session(pb.GenerateRequest(text="x"), resume_s=0)
    running.accept(started())
    with pytest.raises(Unavailable):
        running.failed(LOST)


def test_the_callers_deadline_holds_across_tries():
    clock = Clock()
    running = session(pb.GenerateRequest(text="x"), timeout_s=1, clock=clock)
    assert running.remaining() == 1
    clock.now += 0.75
    assert running.remaining() == 0.25
    clock.now += 0.25
    with pytest.raises(DeadlineExceeded):
        running.remaining()
    with pytest.raises(Unavailable):
        running.failed(LOST)


def test_the_servers_hint_is_waited_for_if_there_is_time():
    attempts = Attempts(RetryPolicy(connect_s=10), None, Clock())
    hint = Unavailable(grpc.StatusCode.UNAVAILABLE, "starting", None, 4.0)
    assert attempts.delay_after(hint, resuming=False) == 4.0
    with pytest.raises(Unavailable):
        attempts.delay_after(Unavailable(grpc.StatusCode.UNAVAILABLE, "x", None, 40.0), resuming=False)


def test_a_stream_that_ends_early_is_resumed():
    running = session(pb.GenerateRequest(text="x"))
    running.accept(started())
    assert running.ended() > 0
    assert running.next_request().sampling.seed == 5


def test_an_absurd_choice_is_refused():
    with pytest.raises(RequestFailed, match="choice 4000000000"):
        session(pb.GenerateRequest(text="x")).accept(delta("a", 1, index=4_000_000_000))
