"""Grade hostile answers through a real pool: each ends by itself and in its memory, with honest ones beside them.

The pool's deadline and memory limit are there as in a run. A worker that met either would have its call killed, which
the grade says; here no call may come to that, because the grader bounds its own time.
"""

import asyncio
from pathlib import Path

import pytest

from arl.reward.math import values
from arl.reward.math.grader import equal
from arl.reward.pool import RewardPool
from arl.reward.scorer import Scorer, UngradedLog
from arl.reward.worker import Settings
from arl.types import Grade, Problem, Response

FUNCTION = "arl.reward.math.grader:score"
DEADLINE = 120.0  # seconds of the clock for a call, on a machine that may be busy with others
GOLDS = ["5", r"\frac{1}{2}", "x^2+1", r"\sqrt{2}", "[0,1)", "(1,2)", "x=3", r"\begin{pmatrix}1\\2\end{pmatrix}"]
HONEST = (Problem("honest", answer=r"\frac{\sqrt{3}}{3}"), Response(r"So it is \boxed{\frac{1}{\sqrt{3}}}."))
FRAMES = [r"So it is \boxed{%s}.", "#### %s", "The answer is $%s$.", "%s"]
LONG = 100_000  # characters


def nested(opening: str, closing: str, depth: int, inside: str = "1") -> str:
    return opening * depth + inside + closing * depth


def hostile_answers() -> list[str]:
    """Return answers that are made to hang a grader, fill its memory, or confuse it."""
    braces = [("(", ")"), ("[", "]"), ("{", "}"), (r"\{", r"\}"), (r"\left(", r"\right)"), ("|", "|")]
    macros = [(r"\sqrt{", "}"), (r"\frac{1}{", "}"), (r"\sin(", ")"), (r"\boxed{", "}"), (r"\text{", "}"), ("2^{", "}")]
    answers = [nested(*pair, depth) for pair in braces + macros for depth in (5, 60, 200, 20_000)]
    answers += [nested(*pair, 200).rstrip(pair[1]) for pair in braces + macros]
    for base in ("2", "10", "x", "(x+1)", "(x+y+z)", r"\pi", "1.0000001", r"\left(1+\sqrt{2}\right)", "e", "i"):
        answers += [f"{base}^{{{exponent}}}" for exponent in (5_000, 10**6, 10**20, 10**300)]
    answers += ["(1+10^{-14000})^{100000}", "(1+2^{-90000})^{99999}"]
    for number in ("3000", "99999", "(10^9)", "(2^{40})", "10^{9}", "((5!)!)", "(x^{99})", "170!!"):
        answers += [number + "!" * count for count in (1, 3)]
    pieces = [*"1 \\$", "9,", "x+", "#### ", r"\boxed{", r"\frac{1}{2}+", "a=", "1/", "answer is ", "<answer>"]
    answers += [(piece * LONG)[:LONG] for piece in pieces]
    answers += [r"0.\overline{" + "7" * 5_000 + "}"]
    for digits in ("7" * 5_000, "٣" * 50, "𝟘" * 300):
        answers += [digits + end for end in ("", "%", "/0", "e999999999", "!", "_7", "²³⁴")]
    for size in ("1000", "10^{12}", r"\infty"):
        answers += [
            rf"\sum_{{k=1}}^{{{size}}} \frac{{1}}{{k^2+k+1}}",
            rf"\binom{{{size}}}{{{size}-7}}",
            rf"\int_0^{{{size}}} e^{{-x^4}} \sin(x^3) dx",
            rf"\gcd({size}!, {size}) \bmod 7^{{{size}}}",
        ]
    factors = [f"(x^{power}+{power}y)" for power in range(1, 99)]
    answers += ["".join(factors), r"\cdot ".join(factors * 20), "+".join(factors * 20)]
    for width in (2, 60):
        row = " & ".join(["1", "x^{99}", r"\frac{1}{x}"] * width)
        answers.append(r"\begin{pmatrix}" + r"\\".join([row] * width) + r"\end{pmatrix}^{100000}")
    return answers


def test_hostile_answers_end_by_themselves(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    answers = hostile_answers()
    problems = [Problem("hostile", answer=GOLDS[index % len(GOLDS)]) for index in range(len(answers))]
    responses = [Response(FRAMES[index % len(FRAMES)].replace("%s", answer)) for index, answer in enumerate(answers)]

    async def main() -> list[Grade]:
        pool = RewardPool(
            Settings((FUNCTION,), workers=2, timeout=DEADLINE, memory_gb=1.0),
            startup=DEADLINE,
            log=log,
            environment={},
            ungraded=UngradedLog(log, lambda text: None),
        )
        async with pool:
            scorer = Scorer(pool, FUNCTION)
            hostile = map(scorer.score, problems, responses)
            return await asyncio.gather(*hostile, *(scorer.score(*HONEST) for _ in answers))

    grades = asyncio.run(main())
    # A verification that ran out of its own time says so; nothing was killed at the deadline, or died.
    assert not [grade.error for grade in grades if grade.error and not grade.error.startswith("TimeoutError")]
    assert all(grade.parts == {"correct": 1.0, "format": 1.0} for grade in grades[len(answers) :])


def test_a_verification_that_runs_out_of_time_says_so_and_is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "SECONDS", 0.01)
    terms = [rf"\tan({number}x+{number}!)" for number in range(2, 150)]
    with pytest.raises(TimeoutError, match=r"no verdict within 0\.01 s"):
        equal("+".join(terms), "+".join(reversed(terms)))


@pytest.mark.parametrize("answer", ["(" * 30 + "1" + ")" * 30, "1" * 500, "2^" * 300 + "2", "x/" * 300 + "x"])
def test_what_is_too_long_is_wrong_at_once_unless_it_is_written_as_the_gold_one(answer: str) -> None:
    assert not equal("2", answer)
    assert equal(answer, f"${answer}$")
