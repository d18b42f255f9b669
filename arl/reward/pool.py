"""Have worker processes call reward functions, one response a call, and replace a worker that hangs or dies.

    Scorer ─► call(function, problem, response) ─► CallQueue ─► a worker ─► Verdict
                                                       ▲           │
                                                       └───────────┴ lost: it is replaced, its calls are made again

A response is graded on its own: one that makes the function hang or die costs its own episode at most. How a worker
achieves that is in arl.reward.worker. Workers run on the controller's machine, because each shares a socket with it.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from arl.clock import deadline
from arl.errors import DeadlineError, ProcessDied
from arl.launch.disk import writing
from arl.launch.process_log import open_log
from arl.launch.process_state import describe_state, state_of
from arl.reward.call_queue import CallQueue
from arl.reward.messages import TRIES, Answer, Settings, Verdict
from arl.reward.scorer import NO_WEIGHTS, OnError, Scorer
from arl.reward.ungraded import UngradedLog
from arl.reward.worker_link import WorkerLink
from arl.types import Problem, Response

GRACE = 10.0  # seconds beyond a call's deadline in which a worker that owes an answer must say something
REPLACING = 60.0  # seconds beyond the tries of a call, in which a lost worker must be replaced
FIRST_PAUSE = 1.0  # seconds between two tries of that
LONGEST_PAUSE = 10.0


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
        workers: processes. Each makes one call at a time, and up to five more that take long.
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
        self._output: BinaryIO | None = None  # while it is entered
        self._environment = environment
        self._ungraded = ungraded
        self._workers: set[WorkerLink] = set()
        self._calls = CallQueue(self._workers)
        self._starting: set[WorkerLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None  # why a worker could not be replaced
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        with writing(self._log):
            self._output = open_log(self._log)
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
        """Call `function`, which is one of `functions`, and return its verdict."""
        if self._failure is not None:
            raise self._failure
        verdict = self._calls.add(self._functions.index(function), problem, response)
        # This wait needs no deadline: every worker that owes something is watched, and a lost one is replaced.
        return await verdict

    # ---- workers

    def _take(self, worker: WorkerLink, answer: Answer) -> None:
        del worker
        self._calls.take(answer)

    def _lose(self, worker: WorkerLink) -> None:
        """Replace a worker whose connection has closed, and make its calls once more."""
        if worker not in self._workers:
            return  # it was still starting
        worker.stop_listening()
        self._workers.discard(worker)
        self._calls.take_back(worker)
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
            self._calls.dispatch()
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
        self._calls.fail(error)

    async def _add_worker(self) -> None:
        """Start a worker, and use it when it has imported the functions."""
        names = ", ".join(self._functions)
        assert self._output is not None
        try:
            output = self._output.fileno()
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
        self._output.close()

    def _start_task(self, work: "asyncio._CoroutineLike[None]", name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _describe_silence(worker: WorkerLink, seconds: float) -> str:
    """Say which worker is replaced, and what keeps it from running."""
    pid = worker.pid
    assert pid is not None, "a worker that was given calls has started"
    state = describe_state(state_of(pid))
    return (
        f"reward worker (pid {pid}) {state}, and has said nothing for {seconds:.0f} s of the {len(worker.owed)} calls "
        "that it owes an answer: it is replaced, and its calls are made again"
    )
