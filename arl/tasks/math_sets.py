"""Provide the problem sets of mathematics that papers report: GSM8K, MATH, AIME and AMC.

Each set is one class, which says where its sides are: arl/tasks/source.py finds the files.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from arl.config.data_section import Columns
from arl.config.section import Section
from arl.data.hub import HubFiles
from arl.data.row_problems import RowReader, file_candidates
from arl.reward.math.grader import gold_answer, score, vote
from arl.tasks.base import Split
from arl.tasks.source import PublishedSet, Source
from arl.types import Problem


def load(source: Source, task: str) -> list[Problem]:
    """Return the problems of a source, after fetching them if need be.

    Raises:
        DataError: the files are nowhere, or a row is not what it was.
    """
    field = f"task {task}"
    reader = RowReader(Columns(prompt=source.prompt, answer=source.answer), template=None)
    candidates, _ = file_candidates(source.files(field), reader, field)
    problems = [candidate.problem for candidate in candidates]
    return [msgspec.structs.replace(problem, answer=gold_answer(problem.answer)) for problem in problems]


SUFFIX = "\nReason step by step, and put the final answer in \\boxed{}."
GSM8K = "openai/gsm8k"
MATH = HubFiles("EleutherAI/hendrycks_math", "*/train-*.parquet")  # one folder a subject
MATH500 = Source("math500/test", HubFiles("HuggingFaceH4/MATH-500", "test.jsonl"), 500, "MIT")


class MathSet(PublishedSet):
    """Pose the problems of a published set. The answer is graded as mathematics, not as text."""

    to_train_on = "math or gsm8k"
    prompting: ClassVar[Mapping[str, Any]] = {"suffix": SUFFIX, "deduplicate": True}
    reward = staticmethod(score)
    extract = staticmethod(vote)
    reward_weights: ClassVar[Mapping[str, float]] = {"format": 0.0}

    def __init__(self, options: Section) -> None:
        del options  # there are none

    def problems(self, split: Split, seed: int) -> list[Problem]:
        """Return all problems of one side, in the order of the files.

        Raises:
            DataError: the set is for evaluation alone, or its files are missing.
        """
        name = type(self).__name__.lower()
        return [problem for source in self.sources(split) for problem in load(source, name)]


class Gsm8k(MathSet):
    """Solve word problems of grade school, whose answers are whole numbers."""

    training = (Source("gsm8k/train", HubFiles(GSM8K, "main/train-*.parquet"), 7473, "MIT", prompt="question"),)
    evaluation_sources = (Source("gsm8k/test", HubFiles(GSM8K, "main/test-*.parquet"), 1319, "MIT", prompt="question"),)


class Math(MathSet):
    """Solve competition problems of MATH; the evaluation is MATH-500."""

    training = (Source("math/train", MATH, 7500, "MIT", answer="solution"),)
    evaluation_sources = (MATH500,)
    # The splits are others' work: a question that is in both of them should not end every run on this task.
    prompting: ClassVar[Mapping[str, Any]] = {**MathSet.prompting, "overlap": "drop"}


class Math500(MathSet):
    """Measure on the 500 test problems of MATH that papers report."""

    evaluation_sources = (MATH500,)


class Aime24(MathSet):
    """Measure on the 30 problems of AIME 2024, whose answers are integers from 0 to 999."""

    # its only split
    evaluation_sources = (
        Source("aime24/test", HubFiles("HuggingFaceH4/aime_2024", "data/train-*.parquet"), 30, "no licence stated"),
    )


class Aime25(MathSet):
    """Measure on the 30 problems of AIME 2025, whose answers are integers from 0 to 999."""

    evaluation_sources = (Source("aime25/test", HubFiles("math-ai/aime25", "test.jsonl"), 30, "Apache-2.0"),)


class Amc23(MathSet):
    """Measure on 40 problems of AMC 12 of 2023, whose answers are numbers."""

    evaluation_sources = (
        Source("amc23/test", HubFiles("math-ai/amc23", "test-*.parquet"), 40, "Apache-2.0", prompt="question"),
    )
