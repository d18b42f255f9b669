"""Have worker processes call reward functions, one response a call, and replace a worker that hangs or dies.

    Scorer ─► call(function, problem, response) ─► queue ─► a worker with room ─► Verdict
                                                                 │
                                                                 └ lost: replaced; its calls are made again, alone

A response is graded on its own: one that makes the function hang or die costs its own episode at most. How a worker
achieves that is in arl.reward.worker. Workers run on the controller's machine, because each shares a socket with it.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from arl.clock import deadline
from arl.errors import DeadlineError, ProcessDied, printable
from arl.launch.disk import writing
from arl.launch.frames import frame
from arl.launch.process_state import describe_state, state_letter
from arl.launch.rotating_log import PipedLog
from arl.reward.messages import TRIES, Answer, RewardCall, Settings, Verdict
from arl.reward.scorer import NO_WEIGHTS, OnError, Scorer
from arl.reward.ungraded import UngradedLog
from arl.reward.worker_link import LONGEST_FAULT, WorkerLink
from arl.types import Problem, Response

GRACE = 10.0  # seconds beyond a call's deadline in which a worker that owes an answer must say something
REPLACING = 60.0  # seconds beyond the tries of a call, in which a lost worker must be replaced
FIRST_PAUSE = 1.0  # seconds between two tries of that
LONGEST_PAUSE = 10.0
LOST = "the worker process died"
FORGED = "something else wrote to the worker's connection"
CANNOT_SEND = "it cannot be sent to a reward worker"
MOST_LOSSES = 3  # workers that a call may lose while they have no other call
MOST_DISTURBED = 3  # times that a call is made again in a worker for itself, because its lanes were lost
MOST_SHARED = 2  # workers that a call may lose until it gets one for itself


@dataclass(eq=False)
class _Pending:
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


class RewardPool:
    """Keep `workers` processes that have imported `functions`.

        pool = RewardPool(
            ["my_rewards:score"],
            workers=4,
            timeout=10.0,
            memory_gb=4.0,
            startup=120.0,
            log=logs / "reward.log",
            environment={},
            ungraded=UngradedLog(logs / "reward.log", print),
        )
        async with pool:
            grade = await pool.scorer("my_rewards:score").score(problem, response)

    Args:
        functions: module:function of each that may be called.
        workers: processes. Each makes one call at a time, and up to four more that take long.
        timeout: seconds for one call.
        memory_gb: that one call may allocate.
        startup: seconds for a new worker to import the functions.
        log: file for the output of all workers.
        environment: variables that are added to those of this process.
        ungraded: keeps a record of episodes without a grade.

    Raises (from entering it, and from every call once a lost worker cannot be replaced):
        ProcessDied: a worker cannot be started, or died while it imported the functions.
        DeadlineError: it did not import them in time.
    """

    def __init__(
        self,
        functions: Sequence[str],
        *,
        workers: int,
        timeout: float,
        memory_gb: float,
        startup: float,
        log: Path,
        environment: Mapping[str, str],
        ungraded: UngradedLog,
    ) -> None:
        self._functions = list(dict.fromkeys(functions))
        self._settings = Settings(tuple(self._functions), timeout, memory_gb)
        self._num_workers = workers
        self._startup = startup
        self._log = log
        self._output: PipedLog | None = None  # while it is entered
        self._environment = environment
        self._ungraded = ungraded
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._queue: deque[_Pending] = deque()
        self._suspects: deque[_Pending] = deque()  # wait for a worker for themselves
        self._workers: set[WorkerLink] = set()
        self._starting: set[WorkerLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None  # why a worker could not be replaced
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        with writing(self._log):
            self._output = await PipedLog.open(self._log, self._fail_all)
        starts = [self._add_worker() for _ in range(self._num_workers)]
        try:
            # Waits for every start, also if one fails, so that no process begins after the others were ended.
            outcomes = await asyncio.gather(*starts, return_exceptions=True)
            failures = [outcome for outcome in outcomes if outcome is not None]
            if failures:
                raise failures[0]
        except BaseException:
            await self._end_all()
            raise
        self._start_task(self._watch(), "reward watch")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end_all()

    def scorer(self, function: str, weights: Mapping[str, float] = NO_WEIGHTS, on_error: OnError = "zero") -> Scorer:
        """Make a scorer of one of the functions; see Scorer."""
        return Scorer(self, function, weights, on_error, self._ungraded)

    @property
    def workers(self) -> list[WorkerLink]:
        """Return the workers that can be given calls, by process id."""
        return sorted(self._workers, key=lambda worker: worker.pid or 0)

    async def call(self, function: str, problem: Problem, response: Response) -> Verdict:
        """Call `function`, which is one of `functions`, and return its verdict.

        A problem that no message can hold, such as one that an env has changed, is an error of its verdict.
        """
        index = self._functions.index(function)
        if self._failure is not None:
            raise self._failure
        call = RewardCall(next(self._ids), index, problem, response)
        try:
            framed = frame(call)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return Verdict(error=f"{CANNOT_SEND} ({printable(str(error))[:LONGEST_FAULT]})")
        pending = _Pending(call, framed, asyncio.get_running_loop().create_future())
        self._pending[call.id] = pending
        self._queue.append(pending)
        self._dispatch()
        # This wait needs no deadline: every worker that owes something is watched, and a lost one is replaced.
        return await pending.verdict

    def _dispatch(self) -> None:
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

    def _is_canceled(self, pending: _Pending) -> bool:
        """Return whether nobody waits for a call any more; then forget it."""
        if not pending.verdict.done():
            return False
        del self._pending[pending.call.id]
        return True

    def _take(self, worker: WorkerLink, answer: Answer) -> None:
        del worker
        pending = self._pending.get(answer.id)  # None: all calls were given up
        if pending is not None and answer.verdict is not None:
            if answer.verdict.is_disturbed and pending.num_disturbed < MOST_DISTURBED:
                self._suspect(pending)
            else:
                del self._pending[answer.id]
                self._settle(pending, answer.verdict)
        self._dispatch()

    def _suspect(self, pending: _Pending) -> None:
        """Have a call made again in a worker for itself, when those that run now cannot disturb it any more."""
        pending.num_disturbed += 1
        pending.num_lost = max(pending.num_lost, MOST_SHARED)
        pending.after = frozenset().union(*(worker.owed for worker in self._workers))
        pending.isolate()
        self._suspects.append(pending)

    def _settle(self, pending: _Pending, verdict: Verdict) -> None:
        if not pending.verdict.done():
            pending.verdict.set_result(verdict)

    # ---- workers

    def _lose(self, worker: WorkerLink) -> None:
        """Replace a worker whose connection has closed, and make its calls once more."""
        if worker not in self._workers:
            return  # it was still starting
        worker.stop_listening()
        self._workers.discard(worker)
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
                self._settle(pending, Verdict(error=f"{FORGED}: {worker.fault}" if worker.fault else LOST))
        self._start_task(self._replace(worker), "new reward worker")

    async def _replace(self, worker: WorkerLink) -> None:
        """End a worker and start another one in its place, unless the pool is closed.

        A call of another worker may have taken all processes or all memory. Then this tries again until that call must
        have ended.
        """
        await worker.end(at_once=True)
        time = asyncio.get_running_loop().time
        end = time() + TRIES * self._settings.timeout + REPLACING
        pause = FIRST_PAUSE
        try:
            while not self._closed.is_set() and not await self._try_to_replace(last=time() >= end):
                await self._wait_for_close(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            self._dispatch()
        except Exception as error:  # whatever it is, those that wait for a worker must get it
            self._fail_all(error)

    async def _wait_for_close(self, seconds: float) -> None:
        """Wait for so long, or until the pool is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    async def _try_to_replace(self, last: bool) -> bool:
        """Start a worker, and return whether it has started. If this is the last try, a failure is raised."""
        try:
            await self._add_worker()
        except (ProcessDied, DeadlineError) as error:
            if last:
                raise
            self._ungraded.note(f"{error}; it is tried again")
            return False
        return True

    def _fail_all(self, error: Exception) -> None:
        self._failure = error
        for pending in self._pending.values():
            if not pending.verdict.done():
                pending.verdict.set_exception(error)
        self._pending.clear()
        self._queue.clear()
        self._suspects.clear()

    async def _add_worker(self) -> None:
        """Start a worker, and use it when it has imported the functions."""
        names = ", ".join(self._functions)
        assert self._output is not None
        try:
            output = self._output.writing_end
            worker = await WorkerLink.start(self._settings, self._environment, output, self._take, self._lose)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread, with which asyncio waits for a process
            raise ProcessDied(f"a reward worker for {names} cannot be started ({error})") from error
        self._starting.add(worker)
        try:
            async with deadline(self._startup, "reward pool", f"{worker} to import {names}"):
                is_ready = await worker.is_ready
        except DeadlineError as error:
            state = worker.state()
            await worker.end(at_once=True)
            raise DeadlineError(f"{error}\n{worker} {state}.") from error
        except BaseException:
            await worker.end(at_once=True)
            raise
        finally:
            self._starting.discard(worker)
        if not is_ready:
            await worker.end()
            raise ProcessDied(f"{worker} {worker.how_it_ended()} while it imported {names}; see {self._log}")
        if self._closed.is_set():
            await worker.end(at_once=True)
        else:
            self._workers.add(worker)

    async def _watch(self) -> None:
        """Replace workers that owe answers and say nothing.

        A worker speaks at least once in the time of a call, because then the call that has run longest ends or is
        given up. Unblocked by the clock alone.
        """
        patience = self._settings.timeout + GRACE
        while True:
            await asyncio.sleep(patience / 4)
            at = asyncio.get_running_loop().time()
            for worker in list(self._workers):
                silent = at - worker.last_heard
                if worker.owed and silent > patience:
                    self._ungraded.note(_describe_silence(worker, silent))
                    self._lose(worker)

    async def _end_all(self) -> None:
        self._closed.set()
        for task in self._tasks:
            if task.get_name() == "reward watch":
                task.cancel()
        ends = [worker.end() for worker in self._workers]
        ends += [worker.end(at_once=True) for worker in self._starting]  # it may import for long
        for worker in self._workers:
            worker.stop_listening()
        self._workers.clear()
        await asyncio.gather(*ends, *self._tasks, return_exceptions=True)
        assert self._output is not None
        await self._output.close()

    def _start_task(self, work: "asyncio._CoroutineLike[None]", name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _describe_silence(worker: WorkerLink, seconds: float) -> str:
    """Say which worker is replaced, and what keeps it from running."""
    pid = worker.pid
    assert pid is not None, "a worker that was given calls has started"
    state = describe_state(state_letter(pid))
    return (
        f"reward worker (pid {pid}) {state}, and has said nothing for {seconds:.0f} s of the {len(worker.owed)} calls "
        "that it owes an answer: it is replaced, and its calls are made again"
    )
