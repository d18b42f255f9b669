"""Rewards of the sweeps that tests run: one that stops where a test asks for it, and one that ends its process."""

import itertools
import os
import signal
from typing import NoReturn

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


def broken(problem: Problem, response: Response) -> NoReturn:
    """End the whole run, which in world virtual is this process."""
    print("this reward has had enough", flush=True)
    os._exit(7)
