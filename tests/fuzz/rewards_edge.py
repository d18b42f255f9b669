"""Try what could be written to a worker in a lane's name, and to the controller in a worker's name.

answers ─► values damaged ─► frames ─► bytes damaged ─► Lane.receive, or WorkerLink.data_received
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from arl.errors import RewardError
from arl.launch.frames import frame
from arl.reward.lane import Lane, LaneError
from arl.reward.messages import LONGEST_ANSWER, READY, Answer, RewardCall, Verdict, fault_in
from arl.reward.worker_link import WorkerLink
from arl.types import Problem, Response
from tests.fuzz.damage import damage_bytes, damage_value, hostile_value
from tests.fuzz.trials import Draw, Edge, Trial

CALLS = [RewardCall(number, 0, Problem("?"), Response("x")) for number in range(1, 4)]
HONEST = [Answer(call.id, Verdict(float(call.id))) for call in CALLS]
READ = 1 << 16  # bytes that arrive at once


@contextlib.contextmanager
def prepare(folder: Path) -> Iterator[Draw]:
    """Draw streams of bytes."""
    with asyncio.Runner() as runner:

        def draw(random: Random) -> Trial:
            stream = _stream(random)
            what = f"{len(stream)} bytes {stream[:300]!r}"
            if random.random() < 0.5:
                return Trial(f"lane, {what}", lambda: _as_lane(stream))
            return Trial(f"worker, {what}", lambda: runner.run(_as_worker(stream)))

        yield draw


def _as_lane(stream: bytes) -> None:
    """Have a worker read the stream from a lane.

    Raises:
        RewardError: it is not what a lane sends.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        lane = Lane(os.getpid(), os.getpid(), ours)
        for call in CALLS:
            lane.add(call)
        taken = []
        try:
            for begin in range(0, len(stream), READ):
                theirs.sendall(stream[begin : begin + READ])
                taken += [Answer(call.id, verdict) for call, verdict, _ in lane.receive()]
        except LaneError as error:
            raise RewardError(str(error)) from error
        finally:
            _check(taken)


async def _as_worker(stream: bytes) -> None:
    """Have the pool's side read the stream from a worker.

    Raises:
        RewardError: it is not what a worker sends.
    """
    taken: list[Answer] = []
    link = WorkerLink(lambda _, answer: taken.append(answer), lambda _: None)
    link.connection_made(_Nowhere())
    for call in CALLS:
        link.send(call, frame(call))
    for begin in range(0, len(stream), READ):
        link.data_received(stream[begin : begin + READ])
    _check([answer for answer in taken if answer.verdict is not None])
    if link.fault:
        raise RewardError(link.fault)


def _check(taken: Sequence[Answer]) -> None:
    """Check that every answer is a fit one to a call of its own."""
    ids = [answer.id for answer in taken]
    assert len(ids) == len(set(ids))
    assert set(ids) <= {call.id for call in CALLS}
    assert not any(answer.verdict is None or fault_in(answer.verdict) for answer in taken)


class _Nowhere(asyncio.WriteTransport):
    """Take what is sent, and close without a word."""

    def write(self, data: Any) -> None: ...

    def abort(self) -> None: ...


# ---- streams


def _stream(random: Random) -> bytes:
    answers = [Answer(READY), *random.choice((HONEST, HONEST[:2], HONEST * 2, HONEST[::-1]))]
    damaged: Any = msgspec.to_builtins(answers)
    if random.random() < 0.7:
        damaged = damage_value(random, damaged)
    values = damaged if isinstance(damaged, list) else [damaged]
    if random.random() < 0.3:
        values.append({"id": random.choice((1, 2, 3, 0, -1, 2**63)), "verdict": _verdict(random)})
    stream = b"".join(_frame(random, value) for value in values)
    return damage_bytes(random, stream) if random.random() < 0.3 else stream


def _verdict(random: Random) -> dict[str, Any]:
    """Return a verdict one part of which is strange."""
    return random.choice(
        (
            {"reward": random.choice((float("nan"), float("inf"), 1e300, 1.0, "1", None, True, 2**60))},
            {"reward": 1.0, "parts": {"a": random.choice((float("nan"), 1e30, "x"))}},
            {"reward": 1.0, "parts": {str(number): 1.0 for number in range(random.choice((10, 300, 10_000)))}},
            {"reward": 1.0, "parts": {"n" * 10_000: 1.0}},
            {"reward": 0.0, "error": random.choice(("no\nline", "x" * 20_000, "\x1b[2J"))},
            {"traceback": "x" * random.choice((10, LONGEST_ANSWER))},
            {"reward": hostile_value(random)},
        )
    )


def _frame(random: Random, value: Any) -> bytes:
    try:
        body = msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeError):  # no message can hold it
        body = b"\xc1"
    size = len(body) if random.random() < 0.95 else random.choice((0, len(body) + 1, 2**32 - 1, LONGEST_ANSWER + 1))
    return size.to_bytes(4, "big") + body


REWARDS = Edge(prepare, trials=300, refuses=RewardError)
