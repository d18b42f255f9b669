"""Let tasks of mathematics share one grader, which lies in a room above theirs and is therefore named."""

from arl.config.imports import import_function
from arl.types import Problem, Response

GRADER = "arl.reward.math.grader"


def math_reward(problem: Problem, response: Response) -> dict[str, float]:
    """Grade an answer as mathematics: parts `correct` and `format`."""
    parts: dict[str, float] = import_function(f"{GRADER}:score", "data.task")(problem, response)
    return parts


def prepare_grader() -> None:
    """Import what the grader needs, so that no answer waits for it: a reward worker calls it when it starts."""
    import_function(f"{GRADER}:score", "data.task")


math_reward.prepare = prepare_grader  # type: ignore[attr-defined]


def math_vote(response: Response) -> str:
    """Return the answer in a response, spelled as all that equal it."""
    answer: str = import_function(f"{GRADER}:vote", "data.task")(response)
    return answer
