r"""Check which answer a response gives, and whether it counts."""

import pytest

from arl.reward.math.grader import score
from arl.types import Problem, Response

RIGHT = [
    ("5", r"First \boxed{3}, no: \boxed{5}."),
    ("5", r"\boxed{5} on page 7, of 10 pages"),
    (r"\frac{1}{2}", r"\boxed{\boxed{\frac{1}{2}}}"),
    (r"\{1,2\}", r"\boxed{\{1,2\}}"),
    ("2", r"$\boxed 2$"),
    ("5", r"put it in \boxed{}. So \boxed{5}. In \boxed{}"),
    ("42", "#### 42\n\nAnother problem: what is 10 times 10?"),
    ("18", "#### $18"),
    ("18", "#### 18 dollars"),
    ("4", "#### Step 3: add\nThe answer is 4"),
    ("4", "#### 3. Add\nThe answer is 4"),
    ("42", "The answer is 42. Note that 7 is prime."),
    ("0.5", "**Answer:** 1/2"),
    (r"\frac{1}{2}", r"Answer: \(\frac{1}{2}\)"),
    ("12", "The final answer is: $12$"),
    ("12", "The answer is $12."),
    ("1234.5", "the answer is 1,234.50 dollars."),
    ("34", "Final Answer: The largest $n$ is 34."),
    ("18", "The answer is that she has 18 eggs."),
    ("3", "The answer to the question is:\n\n3"),
    ("18", "The answer is 18, because 3 of the 21 eggs break."),
    ("18", "The answer is 18 dollars per day, since she sells 9."),
    ("6", "The answer is 2 x 3 = 6."),
    ("6", "Hence 6. This answer is what the question of the two friends asks for."),
    ("Evelyn", "The answer is Evelyn."),
    ("B", "The correct option is (B)."),
    ("3/4", "Therefore x = 3/4."),
    ("-7", "so the result is -7."),
    ("7", "- 7 apples"),
    ("18", "She makes $18.00 every day."),
    ("(3,4)", "The point is (3, 4)."),
    (r"\sqrt{2}", r"so it is $\sqrt{2}$."),
    ("2:30", "The train leaves at 2:30"),
    ("x+1", "So the polynomial is $x+1$."),
    ("5", r"<think>\boxed{3}</think> \boxed{5}"),
    ("300000", r"It is 3 \times 10^5."),
    ("256", "Each of 8 has two states, so there are 2^8."),
    ("12", "因此一共有12个。"),
    ("C", "(C)"),
    ("B", "<answer> B </answer>"),
    ("2, 5", r"Either $x=\boxed{2}$ or $x=\boxed{5}$."),
]
WRONG = [
    ("5", r"\boxed{5} and then \boxed{6}"),
    ("5", r"we get 5, so \boxed{}"),
    ("42", r"so \boxed{42"),
    ("2", r"so \boxed{\frac{1}{2"),
    ("7", "The answer is 42. Note that 7 is prime."),
    ("3", "#### Step 3: add\nThe answer is 4"),
    ("4", "Therefore x = 3/4."),
    ("4", "The point is (3, 4)."),
    ("2", r"so it is $\sqrt{2}$."),
    ("30", "The train leaves at 2:30"),
    ("5", "The answer is not 5."),
    ("3", "The answer is 18, because 3 of the 21 eggs break."),
    ("5", "The answer is 5 or 6."),
    ("3", "2 + 3"),
    ("3", r"<think>\boxed{3}</think> The answer is 5"),
    ("5", "I do not know."),
    ("3", r"It is 3 \times 10^5."),
    ("4", "We get x^2 + 9 for 4 of them, so 4^3."),
    ("5", r"Either $x=\boxed{2}$ or $x=\boxed{5}$."),
    ("5", ""),
]


def grade(gold: str, text: str, truncated: bool = False) -> dict[str, float]:
    return score(Problem("?", answer=gold), Response(text, truncated=truncated))


@pytest.mark.parametrize(("gold", "text"), RIGHT)
def test_the_answer_of_a_response_is_found(gold: str, text: str) -> None:
    assert grade(gold, text)["correct"] == 1.0


@pytest.mark.parametrize(("gold", "text"), WRONG)
def test_no_other_number_of_a_response_counts(gold: str, text: str) -> None:
    assert grade(gold, text)["correct"] == 0.0


@pytest.mark.parametrize("text", ["The answer is 5", "#### 5", "so 5", "5\n", r"so \boxed{5"])
def test_a_response_that_was_cut_off_has_no_answer_at_its_cut(text: str) -> None:
    assert grade("5", text, truncated=True) == {"correct": 0.0, "format": 0.0}


@pytest.mark.parametrize("text", [r"\boxed{5} and", "#### 5\nnow", "The answer is 5.\nLet me"])
def test_a_response_that_was_cut_off_after_its_answer_is_graded(text: str) -> None:
    assert grade("5", text, truncated=True)["correct"] == 1.0


def test_the_format_is_judged_apart_from_the_answer() -> None:
    assert grade("5", r"\boxed{6}") == {"correct": 0.0, "format": 1.0}
    assert grade("5", "#### 6") == {"correct": 0.0, "format": 1.0}
    assert grade("5", "It is 5.") == {"correct": 1.0, "format": 0.0}
    assert grade("5", r"\boxed{5") == {"correct": 0.0, "format": 0.0}


LONG = {
    "open": r"\boxed{" * 14_000,
    "nested": r"\boxed{" * 14_000 + "1" + "}" * 14_000,
    "hashes": "#### " * 20_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_response_is_read_once(name: str) -> None:
    assert grade("2", LONG[name])["correct"] == 0.0
