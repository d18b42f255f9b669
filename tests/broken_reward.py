"""A user's reward gone wrong."""

from arl.types import Problem


def broken(problem: Problem, response: str, truncated: bool) -> float:
    raise ValueError("this reward is broken")
