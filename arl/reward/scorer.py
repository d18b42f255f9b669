"""Grade episodes by one reward function, decide what an episode without a grade means, and shape rewards for training.

problem, response ─► Calls: worker processes, or this process ─► verdict ─► weights ─► grade ─► shaped
                                                                   └─► no grade: reward.on_error, UngradedLog

    shaped = clip((raw + bias) · scale, low, high) + overlong penalty

Scale, bias and clip are those of AReaL (arXiv 2505.24298), whose math recipes use bias −0.5, scale 10 and clip 20. The
penalty is DAPO's (arXiv 2503.14476, equation 13). An evaluation never shapes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from arl.config.scoring_sections import Overlong, Reward
from arl.errors import GradingError, RewardError
from arl.files import writing
from arl.launch.process import open_log
from arl.reward.grading import RewardCallable, Verdict, judge, weigh
from arl.types import Grade, Problem, Response

OnError = Literal["zero", "drop", "stop"]

SHOWN = 60  # characters of the answer, in the log
MAX_UNGRADED_PROBLEMS = 16  # problems, from one grade to the next


@dataclass(eq=False)
class UngradedLog:
    """Record episodes without a grade.

    Args:
        log: the file of the reward workers' output; made with its directory when something is to be written.
        note: shows a line on the console.
    """

    log: Path
    note: Callable[[str], None]
    _kinds: set[str] = field(default_factory=set)  # of causes, that the console has shown

    def add(self, function: str, problem: Problem, response: Response, error: str) -> None:
        """Record an episode that `function` did not grade. The first of each kind is shown as well.

        Raises:
            DiskError: the log cannot be written.
        """
        line = f"no grade: problem {problem.id}: {error}; the answer begins {response.text[:SHOWN]!r}\n"
        with writing(self.log):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with open_log(self.log) as log:
                log.write(line.encode("utf-8", "backslashreplace"))
        kind = error.partition(":")[0]
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.note(
                f"{function} gave an answer to problem {problem.id} no grade: {error} "
                f"(reward.on_error; every such answer is in {self.log})"
            )


class Calls(Protocol):
    """Call reward functions by name: RewardPool, or InlineRewards."""

    ungraded: UngradedLog

    async def call(self, function: str, problem: Problem, response: Response) -> Verdict:
        """Call `function`, once more if that fails, and return the verdict."""


@dataclass(eq=False)
class Scorer:
    """Implement the Rewards of arl.rollout.episodes for one function.

    Args:
        calls: makes the calls.
        function: module:function.
        weights: of the named parts; a part without one counts 1.
        on_error: what becomes of an episode that two calls did not grade. zero: it is graded 0; drop: its group is
            lost; stop: the run ends.
    """

    calls: Calls
    function: str
    weights: Mapping[str, float] = field(default_factory=dict)
    on_error: OnError = "zero"
    _without_grade: set[str] = field(default_factory=set)  # ids of problems that were not graded since the last grade
    _has_reported: bool = False

    async def score(self, problem: Problem, response: Response) -> Grade:
        """Return the grade of one response.

        Raises:
            RewardError: on_error is drop, and it has no grade.
            GradingError: on_error is stop, and it has no grade; or no episode of many problems has one.
        """
        verdict = await self.calls.call(self.function, problem, response)
        grade = weigh(verdict, self.weights)
        if grade.error:
            self.calls.ungraded.add(self.function, problem, response, grade.error)
            self._refuse(problem, grade.error, verdict.traceback)
        else:
            self._without_grade.clear()
            self._look_for_parts(grade)
        return grade

    def _refuse(self, problem: Problem, error: str, trace: str) -> None:
        """Raise the error that on_error asks for; or that the function is broken, and not an answer.

        Raises:
            RewardError, GradingError: as `score`.
        """
        what = f"{self.function} on problem {problem.id}: {error}"
        if self.on_error == "drop":
            raise RewardError(f"{what}\n{trace}")
        if self.on_error == "stop":
            raise GradingError(f"{what}; reward.on_error is stop, zero or drop would go on\n{trace}")
        self._without_grade.add(problem.id)
        if len(self._without_grade) >= MAX_UNGRADED_PROBLEMS:
            raise GradingError(
                f"{self.function} graded not one episode of the last {MAX_UNGRADED_PROBLEMS} problems; the last: "
                f"{error}. Fix the function: with reward.on_error zero the run would learn nothing\n{trace}"
            )

    def _look_for_parts(self, grade: Grade) -> None:
        """Report weights whose part does not come, once."""
        unseen = self.weights.keys() - grade.parts.keys() if grade.parts else set()
        if unseen and not self._has_reported:
            self._has_reported = True
            self.calls.ungraded.note(
                f"reward.weights {', '.join(sorted(unseen))}: {self.function} has named no such part "
                f"(parts: {', '.join(sorted(grade.parts))})"
            )


@dataclass(eq=False)
class InlineRewards:
    """Call reward functions in this process, without deadlines: for virtual time, where there are no other processes.

    Args:
        functions: by name.
        ungraded: keeps a record of episodes without a grade.
    """

    functions: Mapping[str, RewardCallable]
    ungraded: UngradedLog

    async def call(self, function: str, problem: Problem, response: Response) -> Verdict:
        """See Calls."""
        verdict = judge(self.functions[function], problem, response)
        if verdict.error:
            verdict = judge(self.functions[function], problem, response)
        return verdict


# ---- shaped rewards, for training

UNSHAPED = Reward()


def shaped(raw: float, response: Response, section: Reward) -> float:
    """Return the reward that training learns from.

    An episode without a grade has the raw reward 0 and is shaped like every other one. So an answer that makes the
    grader fail is never better off than a wrong answer that is graded 0.

    >>> shaped(1.0, Response("It is 2."), Reward(scale=10.0, bias=-0.5))
    5.0
    """
    low, high = section.clip or (-math.inf, math.inf)
    reward = min(max((raw + section.bias) * section.scale, low), high)
    return reward if section.overlong is None else reward + overlong_penalty(response, section.overlong)


def overlong_penalty(response: Response, section: Overlong) -> float:
    """Return DAPO's soft penalty of long responses, in [−penalty, 0]; arXiv 2503.14476, equation 13.

    0 up to budget − buffer tokens, then falling linearly, to −penalty at the whole budget:

        penalty · (budget − buffer − num_tokens) / buffer
    """
    over = response.num_tokens - (response.budget - section.buffer)
    share = min(max(over / section.buffer, 0.0), 1.0)
    return -section.penalty * share if share else 0.0


def is_masked(response: Response, section: Reward) -> bool:
    """Return whether the episode's tokens are left out of the loss. Its reward still counts in its group."""
    return section.mask_truncated and response.truncated
