"""The clock of a process stands still while the process is stopped, and never for ever."""

import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl import clock
from arl.running_time import BEAT_SECONDS, LATE_SECONDS, REPORTED_SECONDS, Counts, RunningClock
from tests.forks import forks

SLACK = BEAT_SECONDS  # what was counted of a thread before a gap may pass for a part of it


class Turn(NamedTuple):
    """One turn of a loop: what this thread did since the clock was read last."""

    waiting: float  # for events, at most BEAT_SECONDS
    slow: float  # on a core, or without one
    stopped: float


TURNS = st.lists(
    st.builds(
        Turn,
        waiting=st.floats(0, BEAT_SECONDS),
        slow=st.one_of(st.floats(0, 1), st.floats(0, 100)),
        stopped=st.one_of(st.just(0.0), st.floats(0, 10_000)),
    ),
    max_size=60,
)


@dataclass
class Kernel:
    """A monotonic clock, and counts of a thread, which the test moves."""

    now: float = 5.0
    slow: float | None = 7.0
    asleep: float = 3.0

    def counts(self) -> Counts:
        return Counts(self.slow, self.asleep)

    def turn(self, turn: Turn) -> None:
        self.now += sum(turn)
        if self.slow is not None:
            self.slow += turn.slow

    def clock(self, pauses: list[float] | None = None) -> RunningClock:
        note = None if pauses is None else pauses.append
        return RunningClock(0.0, note, monotonic=lambda: self.now, counts=self.counts)


@given(TURNS)
def test_the_clock_never_goes_back_and_counts_at_least_half_of_the_time_in_which_the_process_is_not_stopped(
    turns: list[Turn],
) -> None:
    kernel = Kernel()
    clock = kernel.clock()
    before = clock.time()
    able = 0.0
    for turn in turns:
        kernel.turn(turn)
        at = clock.time()
        assert 0 <= at - before <= sum(turn) + 1e-9
        able += turn.waiting + turn.slow
        before = at
        assert at >= able / 2 - 1e-6


@given(TURNS)
def test_of_a_stop_no_more_is_counted_than_the_time_of_a_beat(turns: list[Turn]) -> None:
    kernel = Kernel()
    clock = kernel.clock()
    for turn in turns:
        before = clock.time()
        kernel.turn(turn)
        counted = clock.time() - before
        assert counted <= max(turn.waiting + turn.slow, 0.0) + LATE_SECONDS + SLACK + 1e-6
        if sum(turn) > LATE_SECONDS:
            assert counted <= BEAT_SECONDS + (turn.slow + SLACK) / 2 + 1e-6


@given(st.floats(LATE_SECONDS, 1e6))
def test_where_the_kernel_counts_no_waits_half_of_every_gap_counts(gap: float) -> None:
    kernel = Kernel(slow=None)
    clock = kernel.clock()
    kernel.now += gap + 0.001
    assert clock.time() >= gap / 2


def test_a_stop_and_a_sleep_of_the_machine_are_reported_once_with_their_length() -> None:
    kernel = Kernel()
    pauses: list[float] = []
    clock = kernel.clock(pauses)
    kernel.turn(Turn(0, 0, 31))
    clock.time()
    kernel.asleep += 100
    kernel.turn(Turn(BEAT_SECONDS, 0.1, 0))
    clock.time()
    kernel.turn(Turn(BEAT_SECONDS, 0.1, REPORTED_SECONDS / 2))
    clock.time()
    clock.time()
    assert pauses == [pytest.approx(31 - BEAT_SECONDS), pytest.approx(100)]


def _wait_for_an_answer(seconds: float, parent: Connection) -> None:
    async def main() -> None:
        pauses: list[float] = []
        with clock.pauses_noticed(pauses.append):
            async with clock.deadline(seconds, "test", "an answer"):
                parent.send("waits")
                await clock.in_thread(parent.recv)
        parent.send(pauses)

    clock.run(main)


@pytest.mark.slow
def test_a_process_that_was_stopped_for_longer_than_its_deadline_goes_on_waiting() -> None:
    seconds = 6.0
    ours, theirs = forks.Pipe()
    process = forks.Process(target=_wait_for_an_answer, args=(seconds, theirs), daemon=True)
    process.start()
    theirs.close()
    assert process.pid is not None
    assert ours.recv() == "waits"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(seconds + REPORTED_SECONDS)  # the stop itself is what is tested
    os.kill(process.pid, signal.SIGCONT)
    ours.send("an answer")
    (pause,) = ours.recv()
    assert pause > seconds
    process.join()
    assert process.exitcode == 0
