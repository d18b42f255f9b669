"""A user's reward: the share of ones. `reward: {function: tests.extending.my_reward:ones}`."""

from arl.types import Problem, Response


def ones(problem: Problem, response: Response) -> float:
    return response.text.count("1") / max(len(response.text), 1)


def without_response(problem: Problem) -> float:
    return 1.0


async def asynchronous(problem: Problem, response: Response) -> float:
    return 1.0


a_number = 1.0
