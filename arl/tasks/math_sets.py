"""Provide the problem sets of mathematics that papers report: GSM8K, MATH, AIME and AMC.

Each set is one class, which says where its sides are (arl.tasks.published_set). The answers are graded by
arl.reward.math.grader.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from arl.config.section import Section
from arl.data.source_files import HubFiles
from arl.errors import DataError
from arl.tasks.base import Split, SplitSource, Task
from arl.tasks.math_reward import math_reward, math_vote
from arl.tasks.published_set import Source, after_hashes, last_boxed
from arl.types import Problem

SUFFIX = "\nReason step by step, and put the final answer in \\boxed{}."

GSM8K_TRAIN = Source(
    local="gsm8k/train",
    hub=HubFiles("openai/gsm8k", "main/train-*.parquet"),
    prompt="question",
    read_answer=after_hashes,
    problems=7473,
    licence="MIT",
)
GSM8K_TEST = msgspec.structs.replace(
    GSM8K_TRAIN,
    local="gsm8k/test",
    hub=HubFiles("openai/gsm8k", "main/test-*.parquet"),
    problems=1319,
)
MATH_TRAIN = Source(
    local="math/train",
    hub=HubFiles("EleutherAI/hendrycks_math", "*/train-*.parquet"),  # one folder a subject
    answer="solution",
    read_answer=last_boxed,
    problems=7500,
    licence="MIT",
)
MATH500 = Source(
    local="math500/test",
    hub=HubFiles("HuggingFaceH4/MATH-500", "test.jsonl"),
    problems=500,
    licence="MIT",
)
AIME24 = Source(
    local="aime24/test",
    hub=HubFiles("HuggingFaceH4/aime_2024", "data/train-*.parquet"),  # its only split
    problems=30,
    licence="no licence stated",
)
AIME25 = Source(
    local="aime25/test",
    hub=HubFiles("math-ai/aime25", "test.jsonl"),
    problems=30,
    licence="Apache-2.0",
)
AMC23 = Source(
    local="amc23/test",
    hub=HubFiles("math-ai/amc23", "test-*.parquet"),
    prompt="question",
    problems=40,
    licence="Apache-2.0",
)


class MathSet(Task):
    """Pose the problems of a published set. The answer is graded as mathematics, not as text."""

    training: ClassVar[Source | None] = None
    evaluation_source: ClassVar[Source]
    name: ClassVar[str]

    prompting: ClassVar[Mapping[str, Any]] = {"suffix": SUFFIX, "deduplicate": True}
    reward = staticmethod(math_reward)
    extract = staticmethod(math_vote)
    reward_weights: ClassVar[Mapping[str, float]] = {"format": 0.0}

    def __init__(self, options: Section) -> None:
        del options  # there are none

    def problems(self, split: Split, seed: int) -> list[Problem]:
        """Return all problems of one side, in the order of the files.

        Raises:
            DataError: the set is for evaluation alone, or its files are missing.
        """
        source = self._source(split)
        if source is None:
            raise DataError(
                f"data.task {self.name}: is for evaluation alone, and has no problems to train on. Train on math or "
                f"gsm8k, and name {self.name} in eval.suites"
            )
        return source.load(self.name)

    @classmethod
    def split_source(cls, split: Split) -> SplitSource | None:
        """Say where the files of this side are."""
        source = cls._source(split)
        return None if source is None else SplitSource(source.problems, source.where(), source.licence)

    @classmethod
    def _source(cls, split: Split) -> Source | None:
        return cls.training if split == "training" else cls.evaluation_source


class Gsm8k(MathSet):
    """Solve word problems of grade school, whose answers are whole numbers."""

    name = "gsm8k"
    training = GSM8K_TRAIN
    evaluation_source = GSM8K_TEST


class Math(MathSet):
    """Solve competition problems of MATH; the evaluation is MATH-500."""

    name = "math"
    training = MATH_TRAIN
    evaluation_source = MATH500
    # The splits are others' work: a question that is in both of them should not end every run on this task.
    prompting: ClassVar[Mapping[str, Any]] = {**MathSet.prompting, "overlap": "drop"}


class Math500(MathSet):
    """Measure on the 500 test problems of MATH that papers report."""

    name = "math500"
    evaluation_source = MATH500


class Aime24(MathSet):
    """Measure on the 30 problems of AIME 2024, whose answers are integers from 0 to 999."""

    name = "aime24"
    evaluation_source = AIME24


class Aime25(MathSet):
    """Measure on the 30 problems of AIME 2025, whose answers are integers from 0 to 999."""

    name = "aime25"
    evaluation_source = AIME25


class Amc23(MathSet):
    """Measure on 40 problems of AMC 12 of 2023, whose answers are numbers."""

    name = "amc23"
    evaluation_source = AMC23
