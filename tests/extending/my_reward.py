"""A user's reward: the share of ones. `reward: {function: tests.extending.my_reward:ones}`."""

from arl.types import Problem


def ones(problem: Problem, response: str, truncated: bool) -> float:
    return response.count("1") / max(len(response), 1)


def without_truncated(problem: Problem, response: str) -> float:
    return 1.0


async def asynchronous(problem: Problem, response: str, truncated: bool) -> float:
    return 1.0


a_number = 1.0
