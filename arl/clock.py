"""Clocks: the wall's, and a virtual one whose time jumps to the next timer when nothing else can run.

The clock seam is the event loop itself: everything reads `now()` and sleeps with asyncio, so the same
controller runs in real and in virtual time. Every wait goes through `deadline`, which knows who waits on whom.
"""

import asyncio
import contextlib
import heapq
import itertools
import selectors
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from arl.errors import DeadlineError

T = TypeVar("T")
P = ParamSpec("P")


def now() -> float:
    """Seconds on the running loop's clock, real or virtual."""
    return asyncio.get_running_loop().time()


class _WallLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, its clock at `start` in the beginning."""

    def __init__(self, start: float) -> None:
        self._zero = time.monotonic() - start
        super().__init__()

    def time(self) -> float:
        return time.monotonic() - self._zero


class _JumpingSelector(selectors.DefaultSelector):
    """Polls real files without blocking and advances virtual time by what it would have waited."""

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
    """Hashes to its serial number: a TaskGroup keeps its tasks in a set, and cancels them in the set's order."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class _NumberedTimer(asyncio.TimerHandle):
    """Of timers at the same instant the one set first fires first; a heap alone would decide by what else it holds."""

    def __init__(self, number: int, when: float, *rest: Any) -> None:
        self._order = (when, number)
        super().__init__(when, *rest)

    def __lt__(self, other: object) -> bool:
        return self._order < other._order if isinstance(other, _NumberedTimer) else NotImplemented


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, from `start`; what runs in it, runs in the same order every time.

    Threads and subprocesses have no place in it.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._jump = _JumpingSelector(start)
        super().__init__(self._jump)
        self._clock_resolution = 1e-9
        numbers, self._timers = itertools.count(), itertools.count()
        self.set_task_factory(
            lambda loop, coroutine, **options: _NumberedTask(next(numbers), coroutine, loop=loop, **options)
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
    """Run `main()` to its end on the wall clock, or in virtual time; `now()` is `start` seconds in the beginning."""
    with asyncio.Runner(loop_factory=lambda: (VirtualLoop if virtual else _WallLoop)(start)) as runner:
        return runner.run(main())


@dataclass(frozen=True, eq=False)
class _Wait:
    who: str
    what: str | Callable[[], str]
    since: float

    def describe(self) -> str:
        return self.what if isinstance(self.what, str) else self.what()


_waits: dict[int, _Wait] = {}


def who_waits() -> str:
    """One line for each wait in progress in this process: who, for what, for how long."""
    lines = [f"{w.who} waits {now() - w.since:.1f} s for {w.describe()}" for w in _waits.values()]
    return "; ".join(sorted(lines)) or "nobody"


@contextlib.asynccontextmanager
async def deadline(seconds: float, who: str, what: str | Callable[[], str]) -> AsyncIterator[asyncio.Timeout]:
    """Bound the block by `seconds` of the running clock; what it yields can move the deadline.

    Raises:
        DeadlineError: the time is over; the message lists every wait of this process.
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
    """`work` in a thread of its own, on the wall clock; one that hangs does not keep the process."""
    loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_result(result) if error is None else done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work(*args, **kwargs)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name=work.__name__, daemon=True).start()
    answer: T = await done
    return answer
