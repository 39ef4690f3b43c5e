"""The device loop without gRPC: sessions, plans of the dead, what ends it, and whom a step is traced to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from hundredfold.rpc import Heartbeat
from hundredfold_worker.device_loop import DeviceLoop
from hundredfold_worker.engine.plan import StepPlan, StepResult
from hundredfold_worker.failures import BrokenPlan, FatalDeviceError
from hundredfold_worker.sampling.params import SamplingParams
from hundredfold_worker.session import MAX_PLANS_QUEUED, Inbox, Leave, Run, Session
from support.step_driver import StepDriver, ints
from support.toy_model import ToyModel


class Loop:
    """A device loop on a thread, over the toy model."""

    def __init__(self, driver: StepDriver) -> None:
        self.driver = driver
        self.inbox: Inbox = Inbox()
        self.error: Exception | None = None
        self.loop = DeviceLoop(driver.engine, self.inbox, Heartbeat("device", 10))
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:
            self.error = error

    def session(self) -> Session:
        return Session(self.inbox)

    def plan(self, prompt: list[int], max_tokens: int = 9) -> StepPlan:
        self.driver.step = 0
        self.driver.tracks.clear()
        self.driver.add(0, prompt, SamplingParams(max_tokens=max_tokens))
        return self.driver.plan()


@pytest.fixture
async def loop(make_driver) -> AsyncIterator[Loop]:
    running = Loop(make_driver(ToyModel()))
    yield running
    running.inbox.put(Leave())
    await asyncio.to_thread(running.thread.join, 5)
    assert not running.thread.is_alive()


async def answer(session: Session) -> StepResult:
    return await asyncio.wait_for(session.next_answer(), 30)


async def test_answers_come_in_order(loop: Loop) -> None:
    session = loop.session()
    session.plan(loop.plan([1, 2, 3]), {})
    for step in (2, 3):
        session.plan(StepPlan(step, slots=ints([0]), num_tokens=ints([1])), {})
    assert [(await answer(session)).step for _ in range(3)] == [1, 2, 3]


async def test_a_result_is_handed_up_when_the_next_kernels_begin(make_driver) -> None:
    """By then the next step has no Python to do. Nothing waits where no step is queued, or one fails."""
    told: list[int] = []
    known_at_kernels: list[list[int]] = []

    class Told(Session):
        def answer(self, answer: object) -> None:
            told.append(answer.step if isinstance(answer, StepResult) else -1)

    model = ToyModel(tamper=lambda _ids, _logits: known_at_kernels.append(list(told)))
    driver, inbox = make_driver(model), Inbox()
    session = Told(inbox)
    driver.add(0, [1, 2, 3], SamplingParams(max_tokens=9))
    plans = [driver.plan(), *(StepPlan(step, slots=ints([0]), num_tokens=ints([1])) for step in (2, 3, 9))]
    for plan in plans:
        inbox.put(Run(session, plan, {}))
    inbox.put(Leave())
    DeviceLoop(driver.engine, inbox, Heartbeat("device", 10)).run()
    assert known_at_kernels == [[], [1], [1, 2]]
    assert told == [1, 2, 3, -1]


async def test_a_plan_that_brings_a_sequence_ends_the_passes_before_it(make_driver) -> None:
    """One that is there when the third pass begins; one without sequences ends nothing."""
    passes = 0
    driver, inbox = make_driver(ToyModel(tamper=lambda _ids, _logits: come())), Inbox()
    session = Session(inbox)
    driver.add(0, [1, 2, 3], SamplingParams(max_tokens=30))
    first = driver.plan()
    driver.add(1, [4, 5], SamplingParams(max_tokens=30))
    newcomer = replace(driver.plan(slots=[1]), step=3)

    def come() -> None:
        nonlocal passes
        passes += 1
        if passes == 3:
            session.plan(newcomer, {})

    session.plan(first, {})
    session.plan(StepPlan(2, slots=ints([0]), num_tokens=ints([6]), num_repeats=5), {})
    loop = asyncio.to_thread(DeviceLoop(driver.engine, inbox, Heartbeat("device", 10)).run)
    running = asyncio.create_task(loop)
    results = [await answer(session) for _ in range(3)]
    inbox.put(Leave())
    await running
    assert [result.num_repeats for result in results] == [0, 1, 0]
    assert [result.num_outputs.tolist() for result in results] == [[1], [2], [1]]


async def test_a_session_finishes_behind_its_last_result(loop: Loop) -> None:
    """A drain may find that nothing runs any more before the last result is handed up."""
    session = loop.session()
    session.plan(loop.plan([1, 2, 3], max_tokens=1), {})
    session.plan(StepPlan(2, slots=ints([0]), num_tokens=ints([1])), {})
    session.finish(ConnectionError("drained"))
    assert [(await answer(session)).step for _ in range(2)] == [1, 2]
    with pytest.raises(ConnectionError, match="drained"):
        await answer(session)


async def test_plans_of_the_dead_are_not_computed(loop: Loop) -> None:
    computing, gate = threading.Event(), threading.Event()
    model = loop.driver.engine._runner._model
    model.tamper = lambda ids, logits: (computing.set(), gate.wait(30))
    first = loop.session()
    for _ in range(2):
        first.plan(loop.plan([1, 2, 3]), {})
    assert await asyncio.to_thread(computing.wait, 30)
    first.close()
    second = loop.session()
    second.plan(loop.plan([4, 5]), {})
    gate.set()
    model.tamper = None
    result = await answer(second)
    assert result.step == 1
    assert loop.driver.engine.totals.steps == 2
    assert first._answers.qsize() <= 1


async def test_a_late_end_does_not_reset_the_successor(loop: Loop) -> None:
    first, second = loop.session(), loop.session()
    second.plan(loop.plan([1, 2]), {})
    await answer(second)
    first.close()
    second.plan(StepPlan(2, slots=ints([0]), num_tokens=ints([1])), {})
    assert (await answer(second)).num_outputs.tolist() == [1]


async def test_a_broken_plan_ends_its_session_alone(loop: Loop) -> None:
    session = loop.session()
    session.plan(StepPlan(7), {})
    session.plan(loop.plan([1, 2]), {})
    with pytest.raises(BrokenPlan):
        await answer(session)
    after = loop.session()
    after.plan(loop.plan([1, 2]), {})
    assert (await answer(after)).step == 1
    assert session._answers.empty()


async def test_a_lost_device_ends_the_loop_and_tells_the_session(loop: Loop) -> None:
    def lose(ids: torch.Tensor, logits: torch.Tensor) -> None:
        raise torch.AcceleratorError("device-side assert")

    loop.driver.engine._runner._model.tamper = lose
    session = loop.session()
    session.plan(loop.plan([1, 2]), {})
    with pytest.raises(FatalDeviceError):
        await answer(session)
    await asyncio.to_thread(loop.thread.join, 5)
    assert isinstance(loop.error, FatalDeviceError)


async def test_a_session_takes_a_few_plans_ahead(loop: Loop) -> None:
    session = loop.session()
    for _ in range(MAX_PLANS_QUEUED):
        await asyncio.wait_for(session.room(), 30)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.room(), 0.05)
    session.plan(loop.plan([1]), {})
    await answer(session)
    await asyncio.wait_for(session.room(), 30)


async def test_a_step_is_traced_to_its_requests(loop: Loop) -> None:
    session = loop.session()

    def traced(plan: StepPlan, fresh: dict[int, str]) -> list[str]:
        return loop.loop._traced(Run(session, plan, fresh))

    both = np.array([0, 3])
    assert traced(StepPlan(1, slots=both), {0: "a", 3: "b"}) == ["a", "b"]
    assert traced(StepPlan(2, slots=both), {}) == ["a", "b"]
    assert traced(StepPlan(3, released_slots=ints([0]), slots=both), {0: "c"}) == ["c", "b"]
    assert traced(StepPlan(4, released_slots=ints([0, 3]), slots=both), {}) == []
