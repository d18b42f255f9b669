"""Decide which worker makes which call of a reward function, and make the calls of a lost worker again.

add ─► queue ─► a worker with room ─► answered
                     │
                     └ lost: made again, alone ─► lost again: a suspect, which gets a worker for itself
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Set
from dataclasses import dataclass

import msgspec

from arl.errors import printable
from arl.launch.frames import frame
from arl.reward.messages import Answer, RewardCall, Verdict
from arl.reward.worker_link import LONGEST_FAULT, WorkerLink
from arl.types import Problem, Response

LOST = "the worker process died"
FORGED = "something else wrote to the worker's connection"
CANNOT_SEND = "it cannot be sent to a reward worker"
MOST_LOSSES = 3  # workers that a call may lose while they have no other call
MOST_DISTURBED = 3  # times that a call is made again in a worker for itself, because its lanes were lost
MOST_SHARED = 2  # workers that a call may lose until it gets one for itself


@dataclass(eq=False)
class PendingCall:
    """Hold a call until its verdict is known."""

    call: RewardCall
    framed: bytes  # the call as it is sent
    verdict: asyncio.Future[Verdict]
    num_lost: int = 0  # workers that were lost while they had it
    num_lost_alone: int = 0  # those of them that had no other call, so that it was at fault
    num_disturbed: int = 0  # verdicts that may be the doing of other calls
    after: frozenset[int] = frozenset()  # ids of those other calls; it is made again when all of them have ended

    @property
    def is_suspect(self) -> bool:
        """Return whether it needs a worker for itself."""
        return self.num_lost >= MOST_SHARED

    def isolate(self) -> None:
        """Have it sent alone from now on."""
        self.call = msgspec.structs.replace(self.call, is_alone=True)
        self.framed = frame(self.call)

    def settle(self, verdict: Verdict) -> None:
        """Give the verdict to whoever still waits for it."""
        if not self.verdict.done():
            self.verdict.set_result(verdict)


class CallQueue:
    """Hold the calls of a pool, from the moment at which they are asked for to their verdicts.

    Args:
        workers: those that can be given calls; the pool adds and removes them.
    """

    def __init__(self, workers: Set[WorkerLink]) -> None:
        self._workers = workers
        self._ids = itertools.count(1)
        self._pending: dict[int, PendingCall] = {}
        self._queue: deque[PendingCall] = deque()
        self._suspects: deque[PendingCall] = deque()  # wait for a worker for themselves

    def add(self, function: int, problem: Problem, response: Response) -> asyncio.Future[Verdict]:
        """Add a call, and return its verdict to be; who cancels that gives up the call.

        A problem that no message can hold, such as one that an env has changed, is an error of its verdict.

        Args:
            function: the index in Settings.functions.
        """
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        call = RewardCall(next(self._ids), function, problem, response)
        try:
            framed = frame(call)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            verdict.set_result(Verdict(error=f"{CANNOT_SEND} ({printable(str(error))[:LONGEST_FAULT]})"))
            return verdict
        pending = PendingCall(call, framed, verdict)
        self._pending[call.id] = pending
        self._queue.append(pending)
        self.dispatch()
        return verdict

    def dispatch(self) -> None:
        """Send waiting calls to the workers that have the fewest.

        A call whose worker was lost is sent alone, so that it takes no others with it if it was at fault. If it takes
        long, others join it. Therefore, one that has lost several is a suspect, and has a worker for itself.
        """
        emptied = self._send_suspects()
        while self._queue:
            pending = self._queue[0]
            if self._is_canceled(pending):
                self._queue.popleft()
                continue
            alone = pending.num_lost > 0
            with_room = [worker for worker in self._workers if worker is not emptied and worker.has_room(alone)]
            worker = min(with_room, key=lambda worker: len(worker.unreleased), default=None)
            if worker is None:
                return
            self._queue.popleft()
            worker.send(pending.call, pending.framed)

    def _send_suspects(self) -> WorkerLink | None:
        """Send suspects to workers that owe nothing.

        Returns:
            A worker that gets no other call, because a suspect waits until that worker owes nothing. It is the one that
            owes the least. So its number falls until the suspect is sent.
        """
        for pending in list(self._suspects):
            if self._is_canceled(pending):
                self._suspects.remove(pending)
                continue
            if pending.after & self._pending.keys():
                continue
            worker = min(self._workers, key=lambda worker: len(worker.owed), default=None)
            if worker is None or worker.owed:
                return worker
            self._suspects.remove(pending)
            worker.send(pending.call, pending.framed, only_call=True)
        return None

    def _is_canceled(self, pending: PendingCall) -> bool:
        """Return whether nobody waits for a call any more; then forget it."""
        if not pending.verdict.done():
            return False
        del self._pending[pending.call.id]
        return True

    def take(self, answer: Answer) -> None:
        """Use the answer of a worker, and send it further calls."""
        pending = self._pending.get(answer.id)  # None: all calls were given up
        if pending is not None and answer.verdict is not None:
            if answer.verdict.is_disturbed and pending.num_disturbed < MOST_DISTURBED:
                self._suspect(pending)
            else:
                del self._pending[answer.id]
                pending.settle(answer.verdict)
        self.dispatch()

    def _suspect(self, pending: PendingCall) -> None:
        """Have a call made again in a worker for itself, when those that run now cannot disturb it any more."""
        pending.num_disturbed += 1
        pending.num_lost = max(pending.num_lost, MOST_SHARED)
        pending.after = frozenset().union(*(worker.owed for worker in self._workers))
        pending.isolate()
        self._suspects.append(pending)

    def take_back(self, worker: WorkerLink) -> None:
        """Have the calls of a lost worker made again, those excepted that were lost too often."""
        for call_id in sorted(worker.owed & self._pending.keys(), reverse=True):
            pending = self._pending[call_id]
            pending.num_lost += 1
            pending.num_lost_alone += len(worker.owed) == 1
            if pending.num_lost_alone < MOST_LOSSES:
                pending.isolate()
                waiting = self._suspects if pending.is_suspect else self._queue
                waiting.appendleft(pending)
            else:
                del self._pending[call_id]
                pending.settle(Verdict(error=f"{FORGED}: {worker.fault}" if worker.fault else LOST))

    def fail(self, error: Exception) -> None:
        """Give up every call, and raise `error` where their verdicts are awaited."""
        for pending in self._pending.values():
            if not pending.verdict.done():
                pending.verdict.set_exception(error)
        self._pending.clear()
        self._queue.clear()
        self._suspects.clear()
