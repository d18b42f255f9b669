"""Rewards of the sweeps that tests run, of which one stops where a test asks for it."""

import itertools
import os
import signal

from arl.types import Problem, Response

HOLD = "ARL_TEST_HOLD"  # in the environment: FIFO:N; the N-th call of a process writes a byte there, and stays
_calls = itertools.count(1)


def held(problem: Problem, response: Response) -> float:
    """Score by the length; the process stays at its N-th call until a signal ends it."""
    call = next(_calls)
    fifo, _, last = os.environ.get(HOLD, "").rpartition(":")
    if fifo and call == int(last):
        os.write(os.open(fifo, os.O_WRONLY), b".")
        signal.pause()
    return response.num_tokens % 7 / 7


def broken(problem: Problem, response: Response) -> float:
    """Stand for a reward with which a test lets `arl train` fail."""
    raise NotImplementedError
