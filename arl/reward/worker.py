"""Run one reward worker process: read jobs from a socket, call the reward function, and write the scores back.

    python -m arl.reward.worker module:function        frames of 4-byte length + msgpack, both ways

The socket is file descriptor 0, so that whatever the function prints goes to the log.
"""

import socket
import sys
import traceback
from collections.abc import Callable
from typing import BinaryIO

import msgspec
from msgspec import Struct

from arl.config.imports import import_function
from arl.reward.grading import make_grade
from arl.types import Grade, Problem, Response

# A RewardFunction of arl.tasks.base, whose import would double the time that a worker takes to start.
Score = Callable[[Problem, Response], float | dict[str, float]]


class Job(Struct, frozen=True):
    """Hold the responses of one group."""

    problem: Problem
    responses: list[Response]


class Verdict(Struct, frozen=True):
    """Answer a job: a grade for each response, or an error."""

    grades: list[Grade] = []
    error: str = ""  # why there are no grades


def score_all(function: Score, job: Job) -> Verdict:
    """Call `function` on every response; an exception or a score that is no finite number becomes the error."""
    grades: list[Grade] = []
    for response in job.responses:
        try:
            result = function(job.problem, response)
            grades.append(make_grade(result, {}))
        except Exception:  # the user's code may raise anything
            return Verdict(error=traceback.format_exc())
    return Verdict(grades)


def frame(message: Struct) -> bytes:
    """Encode a message behind its length."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def serve(function: Score, jobs: BinaryIO, verdicts: BinaryIO) -> None:
    """Score job after job until the controller closes the socket.

    Consumes jobs; waits for the next one; unblocked by it, or by the end of the input, which ends the loop.
    """
    decoder = msgspec.msgpack.Decoder(Job)
    verdicts.write(bytes(4))  # an empty frame reports that the function is imported
    verdicts.flush()
    while header := jobs.read(4):
        size = int.from_bytes(header, "big")
        job = decoder.decode(jobs.read(size))
        verdict = score_all(function, job)
        verdicts.write(frame(verdict))
        verdicts.flush()


def main() -> None:
    """Serve the function that the command line names."""
    controller = socket.socket(fileno=0)
    function = import_function(sys.argv[1], "reward.function")
    with controller.makefile("rb") as jobs, controller.makefile("wb") as verdicts:
        serve(function, jobs, verdicts)


if __name__ == "__main__":
    main()
