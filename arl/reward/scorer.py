"""Grade episodes by one reward function, and decide what an episode without a grade means.

problem, response ─► Calls: worker processes, or this process ─► verdict ─► weights ─► grade
                                                                   └─► no grade: reward.on_error, UngradedLog
"""

import difflib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

from arl.errors import GradingError, RewardError
from arl.files import writing
from arl.launch.process import open_log
from arl.reward.grading import RewardCallable, Verdict, grade_of, judge, weigh
from arl.types import Grade, Problem, Response

OnError = Literal["zero", "drop", "stop"]

NO_WEIGHTS: Mapping[str, float] = MappingProxyType({})
SHOWN = 60  # characters of the answer, in the log
MAX_UNGRADED_PROBLEMS = 16  # problems, from one grade to the next
EPISODES_TO_SEE_PARTS = 64  # after which a weight of a part that never came is reported


class Calls(Protocol):
    """Call reward functions by name. See arl.reward.pool.RewardPool."""

    async def call(self, function: str, problem: Problem, response: Response) -> Verdict:
        """Call `function`, once more if that fails, and return the verdict."""


class UngradedLog:
    """Record episodes without a grade.

    Args:
        log: the file of the reward workers' output; made with its directory when something is to be written.
        note: shows a line on the console.
    """

    def __init__(self, log: Path, note: Callable[[str], None]) -> None:
        self._log = log
        self._note = note
        self._counts: Counter[str] = Counter()  # by kind of cause

    def add(self, function: str, problem: Problem, response: Response, verdict: Verdict) -> None:
        """Record an episode that `function` did not grade.

        Raises:
            DiskError: the log cannot be written.
        """
        line = f"no grade: problem {problem.id}: {verdict.error}; the answer begins {response.text[:SHOWN]!r}\n"
        with writing(self._log):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with open_log(self._log) as log:
                log.write(line.encode("utf-8", "backslashreplace"))
        kind = verdict.error.partition(":")[0]
        self._counts[kind] += 1
        total = self._counts.total()
        if self._counts[kind] == 1:
            self.note(
                f"{function} gave an answer to problem {problem.id} no grade: {verdict.error} "
                f"(reward.on_error; every such answer is in {self._log})"
            )
        elif total >= 10 and set(str(total)[1:]) == {"0"} and str(total)[0] == "1":
            kinds = ", ".join(f"{count:,} × {kind}" for kind, count in self._counts.most_common())
            self.note(f"{total:,} answers had no grade so far: {kinds}")

    def note(self, text: str) -> None:
        """Show a line on the console."""
        self._note(text)


class Scorer:
    """Implement the Rewards of arl.rollout.episodes for one function.

    Args:
        calls: makes the calls.
        function: module:function.
        weights: of the named parts; a part without one counts 1.
        on_error: what becomes of an episode that two calls did not grade. zero: it is graded 0; drop: its group is
            lost; stop: the run ends.
        ungraded: keeps a record of such episodes.
    """

    def __init__(
        self, calls: Calls, function: str, weights: Mapping[str, float], on_error: OnError, ungraded: UngradedLog
    ) -> None:
        self._calls = calls
        self._function = function
        self._weights = weights
        self._on_error = on_error
        self._ungraded = ungraded
        self._without_grade: set[str] = set()  # ids of problems that were not graded since the last grade
        self._num_graded = 0
        self._parts_seen: set[str] = set()

    async def score(self, problem: Problem, response: Response) -> Grade:
        """Return the grade of one response.

        Raises:
            RewardError: on_error is drop, and it has no grade.
            GradingError: on_error is stop, and it has no grade; or no episode of many problems has one.
        """
        called = await self._calls.call(self._function, problem, response)
        verdict = weigh(called, self._weights)
        if verdict.error:
            self._ungraded.add(self._function, problem, response, verdict)
            self._refuse(problem, verdict)
            self._count_problem(problem, verdict)
        else:
            self._without_grade.clear()
        grade = grade_of(verdict)
        self._look_for_parts(grade)
        return grade

    def _refuse(self, problem: Problem, verdict: Verdict) -> None:
        """Raise the error that on_error asks for, if it does."""
        what = f"{self._function} on problem {problem.id}: {verdict.error}"
        trace = f"\n{verdict.traceback}" if verdict.traceback else ""
        if self._on_error == "drop":
            raise RewardError(what + trace)
        if self._on_error == "stop":
            raise GradingError(f"{what}; reward.on_error is stop, zero or drop would go on{trace}")

    def _count_problem(self, problem: Problem, last: Verdict) -> None:
        """Count problems in a row without a grade, because then the function is broken, and not an answer.

        Raises:
            GradingError: they are too many.
        """
        self._without_grade.add(problem.id)
        if len(self._without_grade) >= MAX_UNGRADED_PROBLEMS:
            raise GradingError(
                f"{self._function} graded not one episode of the last {MAX_UNGRADED_PROBLEMS} problems; the last: "
                f"{last.error}. Fix the function: with reward.on_error zero the run would learn nothing\n"
                f"{last.traceback}"
            )

    def _look_for_parts(self, grade: Grade) -> None:
        """Report weights whose part has never come, once."""
        if not self._weights or grade.error or self._num_graded >= EPISODES_TO_SEE_PARTS:
            return
        self._num_graded += 1
        self._parts_seen.update(grade.parts)
        unseen = self._weights.keys() - self._parts_seen
        if unseen and self._num_graded >= EPISODES_TO_SEE_PARTS:
            self._ungraded.note(self._about_weights(sorted(unseen)))

    def _about_weights(self, unseen: Sequence[str]) -> str:
        seen = ", ".join(sorted(self._parts_seen)) or "none, only a number"
        similar = difflib.get_close_matches(unseen[0], self._parts_seen, n=1)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        return (
            f"reward.weights {', '.join(unseen)}: {self._function} has named no such part in {self._num_graded} "
            f"episodes (parts: {seen}){hint}"
        )


class InlineRewards:
    """Implement Calls in this process, without deadlines: for virtual time, where there are no other processes.

    Args:
        functions: by name.
        ungraded: keeps a record of episodes without a grade.
    """

    def __init__(self, functions: Mapping[str, RewardCallable], ungraded: UngradedLog) -> None:
        self._functions = functions
        self._ungraded = ungraded

    def scorer(self, function: str, weights: Mapping[str, float] = NO_WEIGHTS, on_error: OnError = "zero") -> Scorer:
        """Make a scorer of one of the functions; see Scorer."""
        return Scorer(self, function, weights, on_error, self._ungraded)

    async def call(self, function: str, problem: Problem, response: Response) -> Verdict:
        """See Calls."""
        verdict = judge(self._functions[function], problem, response)
        if verdict.error:
            verdict = judge(self._functions[function], problem, response)
        return verdict
