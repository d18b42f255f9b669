"""Run asyncio on the wall clock, or on a virtual clock that jumps to the next timer when nothing else can run.

The clock seam is the event loop itself: everything reads `now()` and sleeps with asyncio, so the same controller runs
in real and in virtual time. Every wait goes through `deadline`, which records who waits for what. When a deadline
passes, its message lists all of these waits.
"""

import asyncio
import contextlib
import heapq
import itertools
import selectors
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from arl.errors import DeadlineError

T = TypeVar("T")
P = ParamSpec("P")


def now() -> float:
    """Return the seconds on the running loop's clock, real or virtual."""
    return asyncio.get_running_loop().time()


class _WallLoop(asyncio.SelectorEventLoop):
    """Run on the wall clock, which reads `start` seconds at the beginning."""

    def __init__(self, start: float) -> None:
        self._zero = time.monotonic() - start
        super().__init__()

    def time(self) -> float:
        return time.monotonic() - self._zero


class _JumpingSelector(selectors.DefaultSelector):
    """Poll real files without blocking, and advance virtual time by the seconds that a real selector would wait."""

    def __init__(self, elapsed: float) -> None:
        super().__init__()
        self.elapsed = elapsed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise DeadlineError(f"nothing can ever happen again in virtual time; waiting: {who_waits()}")
        if not ready and timeout is not None:
            self.elapsed += max(timeout, 0.0)
        return ready


class _NumberedTask(asyncio.Task[Any]):
    """Hash to a serial number.

    A TaskGroup keeps its tasks in a set and cancels them in the order of the set, so hashes decide that order. The
    default hash is an address, which differs from run to run.
    """

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class _NumberedTimer(asyncio.TimerHandle):
    """Run timers that are due at the same instant in the order of their creation.

    A heap alone leaves that order undefined, and runs would differ.
    """

    def __init__(self, number: int, when: float, *rest: Any) -> None:
        self._order = (when, number)
        super().__init__(when, *rest)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _NumberedTimer):
            return NotImplemented
        return self._order < other._order


class VirtualLoop(asyncio.SelectorEventLoop):
    """Run an event loop on virtual time, from `start` seconds on, with the same order of events in every run.

    Do not use threads or subprocesses in it: they finish in real time, so their order is not repeatable.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._jump = _JumpingSelector(start)
        super().__init__(self._jump)
        self._clock_resolution = 1e-9
        self._timers = itertools.count()
        tasks = itertools.count()
        self.set_task_factory(
            lambda loop, coroutine, **options: _NumberedTask(next(tasks), coroutine, loop=loop, **options)
        )

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = _NumberedTimer(next(self._timers), when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]  # as asyncio's own call_at does
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def time(self) -> float:
        return self._jump.elapsed


def run(main: Callable[[], Coroutine[Any, Any, T]], virtual: bool = False, start: float = 0.0) -> T:
    """Run `main()` to its end on the wall clock, or in virtual time, and return its result.

    Args:
        start: what `now()` returns at the beginning, seconds.
    """
    loop_class = VirtualLoop if virtual else _WallLoop
    with asyncio.Runner(loop_factory=lambda: loop_class(start)) as runner:
        return runner.run(main())


@dataclass(frozen=True, eq=False)
class _Wait:
    """Describe a wait in progress; see `deadline`."""

    who: str
    what: str | Callable[[], str]
    since: float

    def describe(self) -> str:
        if isinstance(self.what, str):
            return self.what
        return self.what()


_waits: dict[int, _Wait] = {}


def current_waits() -> list[tuple[str, str, float]]:
    """Return every wait in progress in this process: who waits, for what, and for how many seconds."""
    time = now()
    return [(wait.who, wait.describe(), time - wait.since) for wait in _waits.values()]


def who_waits() -> str:
    """List every wait in progress in this process: who waits, for what, and for how long."""
    lines = [f"{who} waits {seconds:.1f} s for {what}" for who, what, seconds in current_waits()]
    return "; ".join(sorted(lines)) or "nobody"


@contextlib.asynccontextmanager
async def deadline(seconds: float, who: str, what: str | Callable[[], str]) -> AsyncIterator[asyncio.Timeout]:
    """Bound the block by `seconds` of the running clock. Yields asyncio's timeout, which can be rescheduled.

    Args:
        who: the role that waits, for the message.
        what: what it waits for. A function is called when a message is written, so that counts in it are those of
            that moment and not of the beginning of the wait.

    Raises:
        DeadlineError: the time is over. The message lists every wait of this process.
    """
    wait = _Wait(who, what, now())
    _waits[id(wait)] = wait
    try:
        async with asyncio.timeout(seconds) as scope:
            yield scope
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise DeadlineError(f"{who} waited {seconds:g} s for {wait.describe()}. Waiting: {who_waits()}") from error
    finally:
        del _waits[id(wait)]


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread of its own, on the wall clock, and return its result or raise its exception.

    The thread is a daemon: one that hangs does not keep the process from exiting.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(future: Future[T]) -> None:
        if done.done():
            return  # the caller was canceled and waits no longer
        error = future.exception()
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(future.result())

    def run() -> None:
        outcome: Future[T] = Future()
        try:
            outcome.set_result(work(*args, **kwargs))
        except BaseException as error:
            outcome.set_exception(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
            loop.call_soon_threadsafe(finish, outcome)

    threading.Thread(target=run, name=work.__name__, daemon=True).start()
    return await done
