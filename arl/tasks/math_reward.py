"""Grade the tasks of mathematics by arl.reward.math_grader, which is imported where something is graded.

The tasks lie below the rewards, and the controller, which imports tasks, grades nothing.
"""

from arl.config.imports import import_attribute, import_function
from arl.types import Problem, Response

GRADER = "arl.reward.math_grader:score"
VOTE = "arl.reward.math_grader:vote"


def grade_answer(problem: Problem, response: Response) -> dict[str, float]:
    """Grade the answer as mathematics: parts `correct` and `format`.

    Raises:
        TimeoutError: no verdict in time; see arl.reward.math_grader.
    """
    graded: dict[str, float] = import_function(GRADER, "data.task")(problem, response)
    return graded


def answer_to_vote_on(response: Response) -> str:
    """Return the answer in a response, spelled as all that equal it."""
    answer: str = import_function(VOTE, "data.task")(response)
    return answer


def _prepare() -> None:
    import_attribute(f"{GRADER}.prepare", "data.task")()


grade_answer.prepare = _prepare  # type: ignore[attr-defined]  # a reward worker calls it when it starts
