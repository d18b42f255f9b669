"""Prompts that a run could not use end its check, whichever problem has them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from arl.config.recipe import Recipe
from arl.data.model_limits import Limits
from arl.data.prompt_format import PromptFormat
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError, InputError
from arl.run.prompt_lengths import LONGEST_PROMPTS, check_lengths
from arl.types import Problem
from tests.data.chat_tokenizers import INSTRUCTION, chat_tokenizer

LIMITS = Limits(vocab_size=256, context=4096)


def asked(*roles: str) -> Problem:
    return Problem([{"role": role, "content": f"{role} speaks"} for role in roles])


def check(problems: Sequence[Problem], codec: HuggingFaceCodec, tmp_path: Path) -> int:
    sections = {"data": {"task": "arithmetic"}, "model": {"path": str(tmp_path)}, "name": "x"}
    return check_lengths(Recipe.model_validate(sections), list(problems), codec, LIMITS)


def test_roles_that_the_template_refuses_are_found_among_many_problems(tmp_path: Path) -> None:
    codec = HuggingFaceCodec(chat_tokenizer(INSTRUCTION), PromptFormat())
    fine = [asked("user", "assistant", "user")] * (3 * LONGEST_PROMPTS)
    shorter = asked("system")
    check(fine, codec, tmp_path)
    with pytest.raises(DataError, match="does not take messages of system"):
        check([*fine[:40], shorter, *[asked("user")] * 20], codec, tmp_path)


def test_a_prompt_without_a_token_is_named(tmp_path: Path) -> None:
    class Deaf(HuggingFaceCodec):
        def encode_problem(self, problem: Problem) -> tuple[int, ...]:
            return super().encode_problem(problem) if problem.prompt != "?" else ()

    codec = Deaf(chat_tokenizer(None), PromptFormat())
    problems = [Problem("a longer question")] * 40
    check(problems, codec, tmp_path)
    with pytest.raises(InputError, match="'\\?', has no token"):
        check([*problems, Problem("?")], codec, tmp_path)
