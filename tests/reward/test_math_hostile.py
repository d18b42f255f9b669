"""Grade 500 hostile answers through a real pool: each ends by itself and in its memory, with honest ones beside them.

The pool's deadline and memory limit are there as in a run. A worker that met either would have its call killed, which
the grade says; here no call may come to that, because the grader bounds its own time.
"""

import asyncio
from pathlib import Path

import pytest

from arl.reward.math import values
from arl.reward.math.grader import equal
from arl.reward.pool import RewardPool
from arl.reward.scorer import UngradedLog
from arl.reward.worker import Settings
from arl.types import Grade, Problem, Response
from tests.reward.hostile_answers import FAMILIES, hostile_responses

FUNCTION = "arl.reward.math.grader:score"
DEADLINE = 120.0  # seconds of the clock for a call, on a machine that may be busy with others
MEMORY_GB = 1.0
GOLDS = ["5", r"\frac{1}{2}", "x^2+1", r"\sqrt{2}", "[0,1)", "(1,2)", "x=3", r"\begin{pmatrix}1\\2\end{pmatrix}"]
HONEST = (Problem("honest", answer=r"\frac{\sqrt{3}}{3}"), Response(r"So it is \boxed{\frac{1}{\sqrt{3}}}."))


async def grade_all(responses: list[str], log: Path) -> tuple[list[Grade], list[Grade]]:
    """Return the grades of hostile responses, and of an honest one that was sent with each."""
    pool = RewardPool(
        Settings((FUNCTION,), workers=2, timeout=DEADLINE, memory_gb=MEMORY_GB),
        startup=DEADLINE,
        log=log,
        environment={},
        ungraded=UngradedLog(log, lambda text: None),
    )
    async with pool:
        scorer = pool.scorer(FUNCTION)
        problems = [Problem("hostile", answer=GOLDS[index % len(GOLDS)]) for index in range(len(responses))]
        hostile = [scorer.score(problem, Response(text)) for problem, text in zip(problems, responses, strict=True)]
        honest = [scorer.score(*HONEST) for _ in responses]
        grades = await asyncio.gather(*hostile, *honest)
    return grades[: len(responses)], grades[len(responses) :]


def check(hostile: list[Grade], honest: list[Grade]) -> None:
    # A verification that ran out of its own time says so; nothing was killed at the deadline, or died.
    unexpected = [grade.error for grade in hostile if grade.error and not grade.error.startswith("TimeoutError")]
    assert not unexpected
    assert all(grade.parts == {"correct": 1.0, "format": 1.0} for grade in honest)


def test_one_hostile_answer_of_each_family_ends_by_itself(tmp_path: Path) -> None:
    check(*asyncio.run(grade_all(hostile_responses(len(FAMILIES), seed=3), tmp_path / "reward.log")))


def test_a_verification_that_runs_out_of_time_says_so_and_is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "SECONDS", 0.01)
    terms = [rf"\tan({number}x+{number}!)" for number in range(2, 150)]
    with pytest.raises(TimeoutError, match=r"no verdict within 0\.01 s"):
        equal("+".join(terms), "+".join(reversed(terms)))


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^9}}",
        "2^{2^{40}}",
        "(10^9)!",
        "10^{9}!",
        "5!!!!",
        "(" * 30 + "1" + ")" * 30,
        r"\binom{10^9}{5}",
        "1" * 500,
        "2^" * 300 + "2",
        "x/" * 300 + "x",
    ],
)
def test_what_is_too_hard_is_wrong_at_once_unless_it_is_written_as_the_gold_one(answer: str) -> None:
    assert not equal("2", answer)
    assert not equal(r"\sqrt{2}", answer)
    assert equal(answer, f"${answer}$")


HONEST_POWERS = {
    "2^{2008}": "4^{1004}",
    "10^{100}": "100^{50}",
    "2008!": r"2008\cdot 2007!",
    "2^{2^{3}}": "256",
    "(n+1)!": r"n!\cdot(n+1)",
    "x^{99}": r"x\cdot x^{98}",
    r"\binom{49}{6}": "13983816",
    "e^{x^2}": r"(e^x)^x",
}


@pytest.mark.parametrize("gold", HONEST_POWERS)
def test_what_honest_problems_ask_for_is_not_too_hard(gold: str) -> None:
    assert equal(gold, HONEST_POWERS[gold])
    assert not equal(gold, HONEST_POWERS[gold] + "+1")
