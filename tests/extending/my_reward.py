"""A user's rewards: the share of ones, alone or as one of two parts.

reward: {function: tests.extending.my_reward:ones_and_length, weights: {length: -0.01}}
"""

from arl.types import Problem, Response


def ones(problem: Problem, response: Response) -> float:
    return response.text.count("1") / max(len(response.text), 1)


def ones_and_length(problem: Problem, response: Response) -> dict[str, float]:
    return {"ones": ones(problem, response), "length": float(response.num_tokens)}


def without_response(problem: Problem) -> float:
    return 1.0
