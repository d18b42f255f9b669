"""The problems that come with arl are right, are told apart, and can be learned by a tiny model."""

import random

from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Data
from arl.data.problems import load_problems
from arl.data.tokenizer import HuggingFaceCodec
from arl.models.tiny import character_tokenizer
from arl.reward.grading import accuracy_of, make_grade
from arl.tasks.arithmetic import (
    KINDS,
    Arithmetic,
    ArithmeticOptions,
    as_problem,
    demonstrate,
    shipped_problems,
)
from arl.types import Problem, Response

TASK = Arithmetic(ArithmeticOptions())
SEEDS = st.integers(0, 10**6)


def accuracy(problem: Problem, text: str) -> float:
    return accuracy_of(make_grade(Arithmetic.reward(problem, Response(text)), {}))


def test_both_halves_have_every_kind_and_share_no_question() -> None:
    sets = load_problems(Data(task="arithmetic"), seed=0)
    assert len(sets.training) == len(sets.held_out) == 48
    for side in (sets.training, sets.held_out):
        assert {problem.metadata["kind"] for problem in side} == set(KINDS)
    assert not {p.prompt for p in sets.training} & {p.prompt for p in sets.held_out}


@given(SEEDS, st.sampled_from(sorted(KINDS)))
def test_every_step_of_a_demonstration_is_right_and_so_is_its_answer(seed: int, kind: str) -> None:
    rng = random.Random(seed)
    exercise = KINDS[kind](rng)
    worked = demonstrate(exercise, rng)
    *steps, _ = worked.split("; ")
    assert steps
    for step in steps:
        terms, _, result = step.rpartition("=")
        assert eval(terms) == int(result)
    assert accuracy(as_problem(exercise), worked) == 1.0


@given(SEEDS)
def test_a_tiny_models_vocabulary_has_every_character(seed: int) -> None:
    codec = HuggingFaceCodec(character_tokenizer(Arithmetic.characters))
    (stage, habits) = TASK.warmup()
    shown = [*stage.demonstrate(random.Random(seed), 5), *habits.demonstrate(random.Random(seed), 5)]
    for problem, response in shown:
        assert codec.decode(codec.encode_problem(problem)) == problem.prompt
        assert codec.decode(codec.encode(response)) == response


def test_what_is_shown_is_no_problem_and_bad_habits_are_wrong_answers() -> None:
    (stage, habits) = TASK.warmup()
    shipped = {problem.prompt for problem in shipped_problems()}
    assert not shipped & {problem.prompt for problem, _ in stage.demonstrate(random.Random(0), 500)}
    shown = habits.demonstrate(random.Random(0), 200)
    right = sum(accuracy(problem, response) for problem, response in shown)
    assert 0.2 < right / len(shown) < 0.5
