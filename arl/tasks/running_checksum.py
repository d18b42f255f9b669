"""The running checksum: digits on a fixed tape; the worked answer is their running totals mod 6, then the last.

    prompt  044433152550............=      k digits 0–5 on 24 cells, P(k) ∝ 1/k, k = 2..24
    worked  042531022… #total$             one running total per digit
    blurted #total$                        the habit that RL must remove

Answers grow with reward, and their lengths are long-tailed: a reasoning task a 0.4M-parameter model can learn.
"""

import random

from arl.types import Problem

MOD = 6
MIN_DIGITS, MAX_DIGITS = 2, 24
CHARACTERS = "0123456789.=#"
_LENGTHS = range(MIN_DIGITS, MAX_DIGITS + 1)
_ZIPF = [1 / k for k in _LENGTHS]


def problem(rng: random.Random, uniform_lengths: bool = False) -> Problem:
    """Draw one problem; the warm-up draws lengths uniformly, everything else Zipf."""
    k = rng.choice(_LENGTHS) if uniform_lengths else rng.choices(_LENGTHS, _ZIPF)[0]
    digits = [rng.randrange(MOD) for _ in range(k)]
    prompt = "".join(map(str, digits)) + "." * (MAX_DIGITS - k) + "="
    return Problem(prompt, answer=str(sum(digits) % MOD))


def demonstration(problem: Problem, rng: random.Random, blurt: float = 0.0, slip: float = 0.0) -> str:
    """A response to learn from: worked, or blurted with chance `blurt`; each step errs with chance `slip`."""
    assert isinstance(problem.prompt, str)
    if rng.random() < blurt:
        return f"#{problem.answer}"
    total, working = 0, ""
    for digit in problem.prompt.rstrip(".="):
        total = (total + int(digit)) % MOD
        if rng.random() < slip:
            total = rng.randrange(MOD)
        working += str(total)
    return f"{working}#{total}"


def reward(problem: Problem, response: str, truncated: bool) -> float:
    """1 if the response ended by itself and holds one '#', followed by the answer and nothing else."""
    head, mark, answer = response.partition("#")
    return float(not truncated and mark == "#" and answer == problem.answer and "#" not in head)
