"""Let tasks of mathematics share one grader, which lies in a room above theirs and is therefore named.

arl.reward.math.grader:score ─► math_reward ─► Task.reward
arl.reward.math.grader:vote  ─► math_vote   ─► Task.extract
"""

from arl.config.imports import import_function
from arl.types import Problem, Response


class NamedReward:
    """Call the function that a name leads to. It is imported with the first call, or when a reward worker starts.

    Args:
        name: `module:function`, with the signature of arl.tasks.base.RewardFunction.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, problem: Problem, response: Response) -> float | dict[str, float]:
        """See arl.tasks.base.RewardFunction."""
        score: float | dict[str, float] = import_function(self._name, "data.task")(problem, response)
        return score

    def prepare(self) -> None:
        """Do what the function wants done before its first call, such as importing a large library."""
        prepare = getattr(import_function(self._name, "data.task"), "prepare", None)
        if prepare is not None:
            prepare()


math_reward = NamedReward("arl.reward.math.grader:score")
"""Grade an answer as mathematics: parts `correct` and `format`."""


def math_vote(response: Response) -> str:
    """Return the answer in a response, spelled as all that equal it."""
    answer: str = import_function("arl.reward.math.grader:vote", "data.task")(response)
    return answer
