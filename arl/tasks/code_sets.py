"""Provide the problem sets of code that papers report: HumanEval, MBPP, LiveCodeBench, and those to train on.

    row ─► pose ─► prompt
       └─► TESTS: the columns that say how it is tested ─► metadata ─► arl.reward.code, where it is graded

A row of others' whose tests cannot be read stops the start, or is left out by `data.options.malformed: skip`.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, ClassVar, Literal

from arl.config.section import Section
from arl.data.hub import HubFiles
from arl.data.table_rows import Row, read_rows
from arl.errors import DataError, short_message
from arl.reward.code import score, vote
from arl.reward.code.formats import read_tests
from arl.reward.code.judge import VERDICTS
from arl.sandbox.current import close_sandbox
from arl.tasks.base import Split
from arl.tasks.source import PublishedSet, Source
from arl.types import CORRECT, Problem, Response

SUFFIX = "\n\nWrite Python. Put the whole program into one block that begins with ```python."
STREAMS = "Read the input from standard input, and write the answer to standard output."
TESTS = (
    *("tests", "metadata", "private_test_cases", "public_test_cases", "input_output", "official_tests"),
    *("official_tests_complete", "generated_checker", "input_mode", "interaction_format", "time_limit"),
    *("memory_limit", "memory_limit_bytes", "public_tests", "private_tests", "generated_tests", "test_list"),
    *("test_imports", "test_setup_code", "entry_point", "test", "prompt"),
)
"""Columns that are kept: others hold solutions and are large."""


class CodeOptions(Section):
    """Say what becomes of rows that cannot be used."""

    malformed: Literal["fail", "skip"] = "fail"
    """A row whose tests cannot be read, or fail by `check`, stops the start, or is left out."""
    check: bool = False
    """Run the tests of each problem on the set's own solution first, where a row has one. It has to pass."""


class CodeSet(PublishedSet):
    """Pose the problems of a published set. A program is right if it passes every test."""

    Options: ClassVar[type[Section]] = CodeOptions
    to_train_on = "deepcoder or mbpp"
    is_checked: ClassVar[bool] = True  # tests are read when the set is loaded, and not for the first time in a run

    prompting: ClassVar[Mapping[str, Any]] = {"suffix": SUFFIX, "deduplicate": True, "overlap": "drop"}
    reward = staticmethod(score)
    extract = staticmethod(vote)

    def __init__(self, options: Any) -> None:
        self._options = options

    def problems(self, split: Split, seed: int) -> list[Problem]:
        """Return all problems of one side, in the order of the files.

        Raises:
            DataError: the set has no such side, its files are missing, or a row is no problem.
        """
        name = type(self).__name__.lower()
        files = (file for source in self.sources(split) for file in source.files(f"task {name}"))
        rows = (row for file in files for row in read_rows(file, name))
        left_out: list[str] = []
        try:
            problems = [problem for row in rows for problem in self._problem(row, split, left_out)]
        finally:
            if self._options.check:
                close_sandbox()
        self.notes = ()
        if left_out:
            self.notes = (f"{len(left_out):,} rows of {name} left out (data.options.malformed): {left_out[0]}",)
        return problems

    def _problem(self, row: Row, split: Split, left_out: list[str]) -> Iterator[Problem]:
        """Yield the problem of a row, if the side has it; add to `left_out` why it was left out.

        Raises:
            DataError: the row is no problem.
        """
        try:
            if row.malformed:
                raise DataError(row.malformed)
            if not self.has(row.values, split):
                return
            problem = Problem(self.pose(row.values), metadata={n: row.values[n] for n in TESTS if n in row.values})
            if self.is_checked:
                read_tests(problem)
            if self._options.check:
                _check_solution(problem, row.values)
            yield problem
        except (DataError, KeyError, ValueError, TypeError, AttributeError) as error:
            cause = f"has no column {error}" if isinstance(error, KeyError) else str(error)
            left_out.append(short_message(f"{row.place}: {cause}"))
            if self._options.malformed == "fail":
                remedy = "correct it, or leave such rows out with data.options.malformed: skip"
                raise DataError(f"{left_out[0]}; {remedy}") from error

    def has(self, row: Mapping[str, Any], split: Split) -> bool:
        """Return whether a side has a row of its files."""
        del row, split
        return True

    @staticmethod
    def pose(row: Mapping[str, Any]) -> str:
        """Return the prompt of a row that has `question`, and maybe `starter_code`, as in TACO and APPS."""
        starter = row.get("starter_code") or ""
        how = f"Go on with this:\n```python\n{starter.rstrip()}\n```" if starter.strip() else STREAMS
        return f"{row['question'].strip()}\n\n{how}"


def _check_solution(problem: Problem, row: Mapping[str, Any]) -> None:
    """Grade the solution that a row brings.

    Raises:
        DataError: it does not pass the tests of the row.
    """
    listed = row.get("solutions") or []
    solutions = json.loads(listed) if isinstance(listed, str) else listed
    first = solutions[0] if isinstance(solutions, list) and solutions else ""
    completed = row["prompt"] + row["canonical_solution"] if "canonical_solution" in row else ""
    own = completed or row.get("code") or first
    if not own:
        return
    parts = score(problem, Response(own if "```" in own else f"```python\n{own}\n```"))
    if not parts[CORRECT]:
        verdict = next(name for name in VERDICTS if parts[name])
        raise DataError(f"its own solution does not pass its tests ({verdict})")


class HumanEval(CodeSet):
    """Complete functions by their docstrings: 164 problems, for evaluation."""

    evaluation_sources = (
        Source(
            "humaneval/HumanEval", HubFiles("openai/openai_humaneval", "openai_humaneval/test-*.parquet"), 164, "MIT"
        ),
    )

    @staticmethod
    def pose(row: Mapping[str, Any]) -> str:
        return f"Complete this function.\n\n```python\n{row['prompt'].rstrip()}\n```"


class Mbpp(CodeSet):
    """Write small functions: MBPP sanitized, divided as by its authors."""

    training = (
        Source("mbpp/sanitized-mbpp", HubFiles("google-research-datasets/mbpp", "sanitized/train-*"), 120, "CC BY 4.0"),
    )
    evaluation_sources = (
        Source("mbpp/sanitized-mbpp", HubFiles("google-research-datasets/mbpp", "sanitized/test-*"), 257, "CC BY 4.0"),
    )
    ids: ClassVar[Mapping[Split, range]] = {"training": range(601, 975), "evaluation": range(11, 511)}

    def has(self, row: Mapping[str, Any], split: Split) -> bool:
        return row["task_id"] in self.ids[split]

    @staticmethod
    def pose(row: Mapping[str, Any]) -> str:
        tests = "\n".join(row["test_list"])
        return f"{row['prompt']}\nThe code has to pass these tests:\n\n```python\n{tests}\n```"


def _livecodebench(number: int, problems: int) -> Source:
    name = f"test{number if number > 1 else ''}"
    return Source(
        f"livecodebench/{name}", HubFiles("livecodebench/code_generation_lite", f"{name}.jsonl"), problems, "CC"
    )


class LiveCodeBenchOptions(CodeOptions):
    """Choose problems by release and by the day of their contest."""

    release: Literal["v1", "v2", "v3", "v4", "v5", "v6"] = "v6"
    """Problems of this release, which has all of the earlier ones."""
    since: date | None = None
    """Only problems of contests on this day or later."""
    until: date | None = None
    """Only problems of contests on this day or earlier."""


class LiveCodeBench(CodeSet):
    """Solve problems of contests that are newer than a model's data, for evaluation."""

    Options = LiveCodeBenchOptions
    evaluation_sources = tuple(
        _livecodebench(number, problems) for number, problems in enumerate((400, 111, 101, 101, 167, 175), 1)
    )
    is_checked = False  # its hidden tests are gigabytes when unpacked

    def __init__(self, options: LiveCodeBenchOptions) -> None:
        super().__init__(options)
        self._window = (options.since or date.min, options.until or date.max)
        self._num_files = int(options.release[1:])

    def sources(self, split: Split) -> tuple[Source, ...]:
        return super().sources(split)[: self._num_files]

    def has(self, row: Mapping[str, Any], split: Split) -> bool:
        first, last = self._window
        return first <= date.fromisoformat(row["contest_date"][:10]) <= last

    @staticmethod
    def pose(row: Mapping[str, Any]) -> str:
        return CodeSet.pose({**row, "question": row["question_content"]})


class LiveCodeBenchV5(CodeSet):
    """Solve the problems that release v5 of LiveCodeBench added: contests from late 2024 to early 2025."""

    evaluation_sources = LiveCodeBench.evaluation_sources[4:5]
    is_checked = LiveCodeBench.is_checked
    pose = staticmethod(LiveCodeBench.pose)


def _deepcoder(part: str, problems: int) -> Source:
    return Source(f"deepcoder/{part}", HubFiles("agentica-org/DeepCoder-Preview-Dataset", f"{part}-*"), problems, "MIT")


class DeepCoder(CodeSet):
    """Solve competition code: DeepCoder's parts of TACO and PrimeIntellect, evaluated on its part of Codeforces."""

    training = (_deepcoder("taco/train", 7436), _deepcoder("primeintellect/train", 16252))
    evaluation_sources = (_deepcoder("codeforces/test", 408),)

    @staticmethod
    def pose(row: Mapping[str, Any]) -> str:
        return CodeSet.pose({**row, "question": row["problem"]})


class CodeContests(CodeSet):
    """Solve problems of contests, with tests that were generated as well; without those that read files."""

    training = (Source("codecontests/train", HubFiles("deepmind/code_contests", "data/train-*"), 13328, "CC BY 4.0"),)
    evaluation_sources = (
        Source("codecontests/test", HubFiles("deepmind/code_contests", "data/test-*"), 165, "CC BY 4.0"),
    )

    def has(self, row: Mapping[str, Any], split: Split) -> bool:
        return not row.get("input_file") and not row.get("output_file")

    @staticmethod
    def pose(row: Mapping[str, Any]) -> str:
        return CodeSet.pose({"question": row["description"]})


class Codeforces(CodeSet):
    """Solve problems of Codeforces: those with complete official tests on standard input."""

    training = (Source("codeforces/train", HubFiles("open-r1/codeforces", "verifiable/train-*"), 8338, "CC BY 4.0"),)
    evaluation_sources = (
        Source("codeforces/test", HubFiles("open-r1/codeforces", "verifiable/test-*"), 422, "CC BY 4.0"),
    )

    def has(self, row: Mapping[str, Any], split: Split) -> bool:
        is_plain = row.get("input_mode") == "stdio" and not row.get("interaction_format")
        return bool(is_plain and row.get("official_tests_complete") and row.get("official_tests"))

    @staticmethod
    def pose(row: Mapping[str, Any]) -> str:
        examples = [
            f"```input\n{each['input']}\n```\n```output\n{each['output']}\n```" for each in row["examples"] or ()
        ]
        texts = {"Input": row["input_format"], "Output": row["output_format"], "Note": row["note"]}
        parts = [row["description"], *(f"{title}: {text}" for title, text in texts.items() if text), *examples]
        return CodeSet.pose({"question": "\n\n".join(parts)})
