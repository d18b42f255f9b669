"""Watch over an env while it drives an episode: what it raises, how long it is silent, and whether it blocks the loop.

env(problem, session) ─► steps between two awaits ─► one took long: the controller could do nothing meanwhile
                      ├► silence between turns of the policy ─► longer than deadlines.episode: its group fails
                      └► an exception ─► UserCodeError, with file and line of the env
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, cast

from arl.clock import VirtualLoop, now
from arl.errors import ArlError, UserCodeError, leaves
from arl.rollout.env import Env, Session
from arl.types import Grade, Problem

BLOCKED_SECONDS = 0.25  # in which hundreds of tokens of a server arrive


@dataclass(eq=False)
class EnvWatch:
    """Await what an env returns, and say what is wrong with it.

    Args:
        name: of the env, as the recipe gives it.
        silence: seconds of the clock that it may take before, between or after turns; None: any time.
        note: shows a line on the console; None: nothing is shown.
    """

    name: str
    silence: float | None = None
    note: Callable[[str], None] | None = None
    _longest: float = BLOCKED_SECONDS

    async def drive(self, env: Env, problem: Problem, session: Session) -> float | Grade | None:
        """Return what the env returns.

        Raises:
            UserCodeError: it raised, or was silent for too long.
            ArlError: as the env raised it.
        """
        try:
            async with asyncio.timeout(self.silence) as scope:
                num_open = 0

                def set_turn(is_open: bool) -> None:
                    nonlocal num_open
                    num_open += 1 if is_open else -1
                    if self.silence is not None and not scope.expired():
                        scope.reschedule(None if num_open else now() + self.silence)

                session.on_turn = set_turn
                return await _Timed(_called(env, problem, session), self._look_at)
        except Exception as error:
            if isinstance(next(leaves(error)), ArlError):
                raise
            what = ""
            cause: BaseException = error
            if scope.expired():
                what = f"took no turn and did not end for {self.silence:g} s (deadlines.episode)"
                cause = error.__cause__ or error  # the cancellation, whose traceback leads to where it waits
            raise UserCodeError(f"env {self.name} on {problem.id}", cause, what) from error
        finally:
            session.on_turn = lambda is_open: None  # of a turn that the env has left in a task of its own

    def _look_at(self, seconds: float) -> None:
        """Say that the env has blocked the controller, and again when it does so for twice as long."""
        if self.note is None or seconds < self._longest or self.name.startswith("arl."):  # ours only waited for a core
            return
        if not isinstance(asyncio.get_running_loop(), VirtualLoop):  # where blocking harms nobody
            self._longest = 2 * seconds
            self.note(
                f"env {self.name} blocked the controller for {seconds:.1f} s: await what takes long, and call blocking "
                "code by `await asyncio.to_thread(…)`"
            )


async def _called(env: Env, problem: Problem, session: Session) -> float | Grade | None:
    """Call the env where its steps are timed, because one that is no coroutine function works at its call."""
    return await env(problem, session)


class _Timed:
    """Await something, and time each step that it takes between two waits."""

    def __init__(self, inner: Coroutine[Any, Any, float | Grade | None], look_at: Callable[[float], None]) -> None:
        self._inner = inner
        self._look_at = look_at

    def __await__(self) -> Generator[Any, Any, float | Grade | None]:
        error: BaseException | None = None
        while True:
            begin = time.perf_counter()
            try:
                waits_for = self._inner.send(None) if error is None else self._inner.throw(error)
            except StopIteration as end:
                return cast(float | Grade | None, end.value)
            finally:
                self._look_at(time.perf_counter() - begin)
            error = None
            try:
                yield waits_for
            except BaseException as thrown:  # a cancellation goes on into the env
                error = thrown
