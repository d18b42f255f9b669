"""Run stages one after the other, each with a deadline; one that fails does not keep the others from running.

work ─► StageOutcome            ok, slow, wrong or skipped, as the work says
     ─► an exception            failed, with its message
     ─► the deadline passes     failed, with the name of the stage and of whoever waits
"""

import traceback
from collections.abc import Awaitable, Callable

from arl.clock import deadline, now
from arl.errors import ArlError, leaves
from arl.run.smoke.smoke_types import SmokeStage, StageOutcome

USUAL_SECONDS = 180.0  # for everything; the deadlines of stages are given for this time
ENDING_SECONDS = 15.0  # of it, kept for the end of processes
TIME_IS_OVER = "the time for all stages is over: give more with --seconds"

Show = Callable[[SmokeStage], None]
Begin = Callable[[str], None]


class StageRunner:
    """Run and collect stages.

    Args:
        seconds: for all stages. Deadlines of stages are stretched or cut in proportion to USUAL_SECONDS.
        begin: is called with the name of each stage that starts.
        show: is called with each stage that has ended.
        hide: returns a copy of a stage without secrets.
    """

    def __init__(self, seconds: float, begin: Begin, show: Show, hide: Callable[[SmokeStage], SmokeStage]) -> None:
        self.stages: list[SmokeStage] = []
        self._scale = seconds / USUAL_SECONDS
        self._end = now() + seconds - ENDING_SECONDS * self._scale
        self._begin = begin
        self._show = show
        self._hide = hide

    async def run(self, name: str, seconds: float, work: Callable[[], Awaitable[StageOutcome]]) -> StageOutcome:
        """Run one stage and return its outcome, whatever happens in it.

        Args:
            seconds: deadline, for USUAL_SECONDS in all.
            work: the stage; it is cancelled at its deadline.
        """
        start = now()
        own = seconds * self._scale
        left = self._end - start
        allowed = min(own, left)
        if allowed <= 0:
            outcome = StageOutcome(verdict="skipped", said=TIME_IS_OVER)
        else:
            self._begin(name)
            outcome = await self._attempt(name, allowed, work)
        if outcome.verdict == "failed" and left < own and now() >= self._end:
            outcome = StageOutcome(verdict="failed", said=f"{TIME_IS_OVER}. {outcome.said}")
        self.record(name, outcome, now() - start)
        return outcome

    async def end(self, name: str, seconds: float, work: Callable[[], Awaitable[StageOutcome]]) -> None:
        """Run a stage that ends processes, also when the time for all stages is over."""
        start = now()
        outcome = await self._attempt(name, seconds * self._scale, work)
        self.record(name, outcome, now() - start)

    def has_left(self, seconds: float) -> bool:
        """Return whether a part that takes so long, for USUAL_SECONDS in all, may begin."""
        return self._end - now() >= seconds * self._scale

    def record(self, name: str, outcome: StageOutcome, seconds: float = 0.0) -> None:
        """Add a stage that has ended, and show it."""
        stage = SmokeStage(
            name=name,
            verdict=outcome.verdict,
            seconds=round(seconds, 2),
            said=outcome.said,
            measured=outcome.measured,
            findings=outcome.findings,
        )
        shown = self._hide(stage)
        self.stages.append(shown)
        self._show(shown)

    def skip(self, name: str, reason: str) -> None:
        """Record a stage that cannot run."""
        self.record(name, StageOutcome(verdict="skipped", said=reason))

    async def _attempt(self, name: str, seconds: float, work: Callable[[], Awaitable[StageOutcome]]) -> StageOutcome:
        try:
            async with deadline(seconds, "arl doctor", f"the stage {name!r}"):
                return await work()
        except Exception as error:
            return StageOutcome(verdict="failed", said=describe(error))


def describe(error: BaseException) -> str:
    """Return the message of an error of ours, and of any other its type, its message and where it was raised."""
    causes = list(leaves(error))
    ours = [cause for cause in causes if isinstance(cause, ArlError)]
    if ours:
        return str(ours[0])
    cause = causes[0]
    place = traceback.extract_tb(cause.__traceback__)[-1:]
    where = "".join(f" at {frame.filename}:{frame.lineno}" for frame in place)
    return f"{type(cause).__name__}: {cause}{where}"
