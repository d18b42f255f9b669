"""Run asyncio on the wall clock, or on a virtual clock that jumps to the next timer when nothing else can run.

The clock seam is the event loop itself: everything reads `now()` and sleeps with asyncio, so the same controller runs
in real and in virtual time. The wall clock leaves out what this process was stopped for, and so does every timeout.

Every wait for another role goes through a bound that records who waits for what. When one passes, its message lists all
waits of this process. asyncio.timeout alone bounds what is no failure of the run when it passes: a stranger at a
socket, a process that is killed if it does not end by itself.

    deadline         of a wait that knows whom it waits for
    outer_deadline   of a wait for what others do, each within deadlines of its own, or beside the run. It never fires
                     before a deadline of theirs, which knows more, and none waits for it
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
BEAT_SECONDS = 0.5  # the wall loop reads its clock at least so often
LATE_SECONDS = 5.0  # without a reading: this process was stopped (Ctrl-Z, a debugger, a frozen container), or starved
MARGIN = 5.0  # seconds that an inner deadline has to end everything before an outer one fires


def now() -> float:
    """Return the seconds on the running loop's clock, real or virtual."""
    return asyncio.get_running_loop().time()


class _BeatingSelector(selectors.DefaultSelector):
    """Return at least every BEAT_SECONDS, so that the loop reads its clock."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(BEAT_SECONDS if timeout is None else min(timeout, BEAT_SECONDS))


class _WallLoop(asyncio.SelectorEventLoop):
    """Run on the wall clock, from `start` seconds on. A gap of LATE_SECONDS between two readings is left out.

    Otherwise every deadline would have passed when a process that was stopped goes on, although nobody else was late.
    """

    def __init__(self, start: float, on_pause: Callable[[float], object] | None) -> None:
        self._last = time.monotonic()
        self._zero = self._last - start
        self._on_pause = on_pause
        super().__init__(_BeatingSelector())

    def time(self) -> float:
        at = time.monotonic()
        gap = at - self._last
        self._last = at
        if gap > LATE_SECONDS:
            self._zero += gap - BEAT_SECONDS
            if self._on_pause is not None:
                self.call_soon(self._on_pause, gap)
        return at - self._zero


class _JumpingSelector(selectors.DefaultSelector):
    """Poll real files without blocking, and advance virtual time by the seconds that a real selector would wait."""

    def __init__(self, elapsed: float) -> None:
        super().__init__()
        self.elapsed = elapsed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise DeadlineError(f"nothing can ever happen again in virtual time; waiting: {who_waits()}")
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

    def __lt__(self, other: Any) -> bool:
        return bool(self._order < other._order)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Run an event loop on virtual time, from `start` seconds on, with the same order of events in every run.

    What finishes in real time has no repeatable order. So work for a thread is done in place, while virtual time stands
    still, and sockets and subprocesses are refused (`REAL_IO`).
    """

    def __init__(self, start: float = 0.0) -> None:
        self._jump = _JumpingSelector(start)
        super().__init__(self._jump)
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

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` now. asyncio.to_thread comes here, too."""
        outcome: asyncio.Future[T] = self.create_future()
        try:
            outcome.set_result(func(*args))
        except Exception as error:
            outcome.set_exception(error)
        return outcome


def _refusal(operation: str) -> Callable[..., Coroutine[Any, Any, None]]:
    async def refuse(*args: Any, **options: Any) -> None:
        raise NotImplementedError(
            f"{operation} in virtual time, which cannot wait for sockets and subprocesses: call blocking code by "
            "`await asyncio.to_thread(…)`, which is then done in place, or use world: wall"
        )

    return refuse


REAL_IO = (
    *("create_connection", "create_unix_connection", "create_datagram_endpoint", "create_server", "sock_connect"),
    *("subprocess_exec", "subprocess_shell", "connect_read_pipe", "connect_write_pipe"),
)
for _operation in REAL_IO:
    setattr(VirtualLoop, _operation, _refusal(_operation))


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    virtual: bool = False,
    start: float = 0.0,
    on_pause: Callable[[float], object] | None = None,
) -> T:
    """Run `main()` to its end on the wall clock, or in virtual time, and return its result.

    Args:
        start: what `now()` returns at the beginning, seconds.
        on_pause: is called with the seconds of each pause in which this process could not run. Virtual time has none.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start) if virtual else _WallLoop(start, on_pause)) as runner:
        return runner.run(main())


@dataclass(eq=False)
class _Wait:
    """Describe a wait in progress; see `deadline`."""

    who: str
    what: str | Callable[[], str]
    since: float
    scope: asyncio.Timeout | None  # that outer deadlines leave the time to fire; None: they do not wait for it

    def describe(self) -> str:
        return self.what if isinstance(self.what, str) else self.what()


_waits: list[_Wait] = []


def current_waits() -> list[tuple[str, str, float]]:
    """Return every wait in progress in this process: who waits, for what, and for how many seconds."""
    time = now()
    return [(wait.who, wait.describe(), time - wait.since) for wait in _waits]


def who_waits() -> str:
    """List every wait in progress in this process: who waits, for what, and for how long."""
    lines = [f"{who} waits {seconds:.1f} s for {what}" for who, what, seconds in current_waits()]
    return "; ".join(sorted(lines)) or "nobody"


class OuterBound:
    """Let a block time out when its time is over, and later if a deadline that was running then knows more.

    It looks for such deadlines once, so it fires at the latest MARGIN after the longest of them. Those that begin
    afterwards postpone nothing.
    """

    def __init__(self, scope: asyncio.Timeout, seconds: float) -> None:
        self._scope = scope
        self.timer = self._start(now() + seconds)

    def reschedule(self, when: float) -> None:
        """Let its time be over at `when`, of the running clock."""
        self.timer.cancel()
        self._scope.reschedule(None)
        self.timer = self._start(when)

    def _start(self, when: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_at(when, self._end)

    def _end(self) -> None:
        ends = [wait.scope.when() for wait in _waits if wait.scope is not None]
        latest = max((end + MARGIN for end in ends if end is not None), default=now())
        self._scope.reschedule(latest)


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
    scope = asyncio.timeout(seconds)
    async with _recorded(_Wait(who, what, now(), scope), scope, seconds):
        yield scope


@contextlib.asynccontextmanager
async def outer_deadline(seconds: float, who: str, what: str | Callable[[], str]) -> AsyncIterator[OuterBound]:
    """Bound the block as `deadline` does, but never fire before a deadline of this process that knows more.

    When `seconds` have passed, it waits for the deadlines that are running then, and for MARGIN. Yields the bound,
    which can be rescheduled.
    """
    scope = asyncio.timeout(None)
    async with _recorded(_Wait(who, what, now(), None), scope, seconds):
        bound = OuterBound(scope, seconds)
        try:
            yield bound
        finally:
            bound.timer.cancel()


@contextlib.asynccontextmanager
async def _recorded(wait: _Wait, scope: asyncio.Timeout, seconds: float) -> AsyncIterator[None]:
    """Run the block within `scope`, as a wait that messages list."""
    _waits.append(wait)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        message = f"{wait.who} waited {seconds:g} s for {wait.describe()}. Waiting: {who_waits()}"
        raise DeadlineError(message) from error
    finally:
        _waits.remove(wait)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread of its own, in virtual time in place, and return its result or raise its exception.

    The thread is a daemon: one that hangs does not keep the process from exiting.
    """
    if isinstance(asyncio.get_running_loop(), VirtualLoop):
        return work(*args, **kwargs)
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # so that the thread may set it when the caller waits no longer

    def run() -> None:
        try:
            outcome.set_result(work(*args, **kwargs))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=work.__name__, daemon=True).start()
    return await asyncio.wrap_future(outcome)
