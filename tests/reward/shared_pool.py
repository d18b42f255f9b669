"""A reward function that makes a pool of processes while it is imported, as one should not."""

from concurrent.futures import ProcessPoolExecutor

from arl.types import Problem, Response

POOL = ProcessPoolExecutor(2)


def score(problem: Problem, response: Response) -> float:
    return POOL.submit(len, response.text).result()
