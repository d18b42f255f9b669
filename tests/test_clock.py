"""An outer deadline never fires before one that knows more, and never much later; a pause moves every deadline."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arl import clock
from arl.clock import MARGIN
from arl.errors import DeadlineError

SPANS = st.floats(0.1, 1000.0)
LATE = 1.0  # seconds
INNER = st.tuples(SPANS, SPANS)  # when it begins, its seconds


async def wait_forever() -> None:
    await asyncio.get_running_loop().create_future()


async def fired(inner: list[tuple[float, float]], seconds: float) -> list[tuple[float, str]]:
    """Return when and which waits fire: each of `inner`, and the outer one, which does not contain them."""
    order: list[tuple[float, str]] = []

    async def wait_inside(name: str, begin: float, length: float) -> None:
        await asyncio.sleep(begin)
        try:
            async with clock.deadline(length, "inner", name):
                await wait_forever()
        except DeadlineError:
            order.append((clock.now(), name))

    async def wait_outside() -> None:
        try:
            async with clock.outer_deadline(seconds, "outer", "outer"):
                await wait_forever()
        except DeadlineError:
            order.append((clock.now(), "outer"))

    async with asyncio.TaskGroup() as tasks:
        for number, given_inner in enumerate(inner):
            tasks.create_task(wait_inside(f"inner-{number}", *given_inner))
        tasks.create_task(wait_outside())
    return order


@settings(deadline=None)
@given(st.lists(INNER, max_size=6), SPANS)
def test_an_outer_deadline_fires_after_those_that_run_when_its_time_is_over_and_a_margin_later_at_most(
    inner: list[tuple[float, float]], seconds: float
) -> None:
    order = clock.run(lambda: fired(inner, seconds), virtual=True)
    times = {name: at for at, name in order}
    running = [begin + length for begin, length in inner if begin < seconds - 1e-6 < begin + length - 2e-6]
    for end in running:
        assert times["outer"] >= end + MARGIN - 1e-6
    latest = max([begin + length for begin, length in inner if begin <= seconds], default=0.0)
    assert seconds - 1e-6 <= times["outer"] <= max(seconds, latest + MARGIN) + 1e-6


def test_an_outer_deadline_that_is_moved_forgets_what_it_has_waited_for() -> None:
    async def inner() -> None:
        async with clock.deadline(100, "inner", "inner"):
            await asyncio.sleep(15)

    async def main() -> float:
        task = asyncio.create_task(inner())
        with contextlib.suppress(DeadlineError):
            async with clock.outer_deadline(10, "outer", "outer") as bound:
                await task
                bound.reschedule(clock.now() + 10)
                await wait_forever()
        return clock.now()

    assert clock.run(main, virtual=True) == 25


def stop_for_a_while(loop_is_stopped: Connection) -> None:
    """Wait 1 s for nothing, and say how long that took and which pauses were noticed."""
    pauses: list[float] = []

    async def main() -> None:
        loop_is_stopped.send("waiting")
        with contextlib.suppress(DeadlineError):
            async with clock.deadline(1.0, "somebody", "nothing"):
                await wait_forever()

    began = time.monotonic()
    clock.run(main, on_pause=pauses.append)
    loop_is_stopped.send((time.monotonic() - began, pauses))


def test_a_process_that_was_stopped_does_not_find_its_deadlines_passed_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "LATE_SECONDS", LATE)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=stop_for_a_while, args=(theirs,))
    child.start()
    assert child.pid is not None
    assert ours.recv() == "waiting"
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(2 * LATE)  # the stop itself is what is tested
    os.kill(child.pid, signal.SIGCONT)
    seconds, pauses = ours.recv()
    child.join()
    assert seconds > 2 * LATE
    assert len(pauses) == 1
    assert pauses[0] > LATE
