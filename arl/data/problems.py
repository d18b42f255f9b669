"""Load problems, from a task or from files, filter them, and hand the training ones out, each epoch in its own shuffle.

task or files ─► candidates ─► held out | training ─► filters ─► ProblemSets ─► ProblemOrder ─► one problem after
                                                                                 another, epoch after epoch
filters: equal questions once ─► none of an evaluation ─► short prompts ─► solved at the wanted rate

Every filter returns what it keeps, and a note that counts what it left out.
"""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from arl.config.data_section import PassRate
from arl.config.recipe import Data
from arl.data.row_problems import Candidate, RowReader, file_candidates, prompt_key
from arl.data.source_files import find_files
from arl.data.table_rows import read_rows
from arl.errors import DataError
from arl.tasks.base import is_held_out
from arl.tasks.registry import open_task
from arl.types import LARGEST_REWARD, Problem


class ProblemSets(Struct, frozen=True):
    """Hold the recipe's own problems."""

    training: list[Problem]
    held_out: list[Problem]
    notes: tuple[str, ...] = ()  # what was left out, and how many


class _Split(Struct, frozen=True):
    """Hold both sides before the filters."""

    training: list[Candidate]
    held_out: list[Candidate]
    notes: list[str]


def load_problems(
    data: Data,
    seed: int,
    suites: Mapping[str, Sequence[Problem]] = {},
    count_tokens: Callable[[Problem], int] | None = None,
) -> ProblemSets:
    """Load or make the problems, in the order of the files or of the task, and filter those for training.

    Args:
        seed: of a task that draws its problems.
        suites: name of a suite -> its problems, which must not overlap with the training problems.
        count_tokens: tokens of a problem's prompt; needed with data.max_prompt_tokens.

    Raises:
        DataError: no such file, a row that is no problem, nothing to train on, or an overlap that is to be refused.
    """
    split = _of_task(data, seed) if data.task is not None else _of_files(data)
    evaluations = {"the problems of the evaluation": split.held_out}
    for name, problems in suites.items():
        evaluations[f"the suite {name}"] = as_candidates(problems, name)
    training, notes = _filtered(split, evaluations, data, count_tokens)
    if not training:
        source = f"data.path {data.path}" if data.path is not None else f"data.task {data.task}"
        said = "".join(f"; {note}" for note in notes)
        raise DataError(
            f"{source}: {len(split.held_out)} problems are held out and leave none to train on; give more, hold out "
            f"fewer, or filter less{said}"
        )
    return ProblemSets(_problems(training), _problems(split.held_out), tuple(notes))


def _of_task(data: Data, seed: int) -> _Split:
    assert data.task is not None
    task = open_task(data)
    return _Split(
        training=as_candidates(task.problems("training", seed), data.task),
        held_out=as_candidates(task.problems("evaluation", seed), data.task),
        notes=[],
    )


def _of_files(data: Data) -> _Split:
    assert data.path is not None
    candidates, notes = _read(data, data.path, "data.path")
    if data.eval_path is not None:
        held_out, more = _read(data, data.eval_path, "data.eval_path")
        return _Split(candidates, held_out, notes + more)
    assert data.eval_fraction is not None
    if data.deduplicate:  # before the split, which could put one question on both sides
        candidates, repeats = without_repeats(candidates)
        notes = notes + repeats
    split = _Split([], [], notes)
    for candidate in candidates:
        side = split.held_out if is_held_out(candidate.problem, data.eval_fraction) else split.training
        side.append(candidate)
    return split


def _read(data: Data, spec: str, field: str) -> tuple[list[Candidate], list[str]]:
    return file_candidates(
        find_files(spec, field),
        RowReader(data.columns, data.template),
        field,
        skip_malformed=data.malformed == "skip",
    )


def _filtered(
    split: _Split,
    evaluations: Mapping[str, Sequence[Candidate]],
    data: Data,
    count_tokens: Callable[[Problem], int] | None,
) -> tuple[list[Candidate], list[str]]:
    """Return the training candidates that pass every filter, and all notes."""
    kept = split.training
    notes = list(split.notes)
    if data.deduplicate:
        kept, more = without_repeats(kept)
        notes += more
    kept, more = without_overlap(kept, evaluations, drop=data.overlap == "drop")
    notes += more
    if data.max_prompt_tokens is not None:
        assert count_tokens is not None
        kept, more = without_long_prompts(kept, data.max_prompt_tokens, count_tokens)
        notes += more
    if data.pass_rate is not None:
        kept, more = by_pass_rate(kept, data.pass_rate)
        notes += more
    return kept, notes


def _problems(candidates: Sequence[Candidate]) -> list[Problem]:
    return [candidate.problem for candidate in candidates]


class ProblemOrder:
    """Hand out training problems without end, each epoch in its own deterministic shuffle.

    >>> order = ProblemOrder([Problem("a"), Problem("b")], seed=0)
    >>> sorted(next(order).prompt for _ in range(2))
    ['a', 'b']
    """

    def __init__(self, problems: list[Problem], seed: int) -> None:
        assert problems
        self._problems = problems
        self._seed = seed
        self._epoch = -1  # that `_shuffled` is of; none yet
        self._shuffled = problems
        self.position = 0  # problems handed out

    def __iter__(self) -> "ProblemOrder":
        return self

    def restore(self, position: int) -> None:
        """Go on from a checkpoint, after so many problems."""
        self.position = position

    def __next__(self) -> Problem:
        epoch, index = divmod(self.position, len(self._problems))
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffled = list(self._problems)
            random.Random(f"epoch {epoch} {self._seed}").shuffle(self._shuffled)
        self.position += 1
        return self._shuffled[index]


Kept = tuple[list[Candidate], list[str]]


def without_repeats(candidates: Sequence[Candidate]) -> Kept:
    """Keep the first of all candidates with an equal question."""
    first: dict[str, Candidate] = {}
    repeats = [candidate for candidate in candidates if first.setdefault(candidate.key, candidate) is not candidate]
    if not repeats:
        return list(candidates), []
    others = [repeat for repeat in repeats if repeat.problem.answer != first[repeat.key].problem.answer]
    doubt = f"; {len(others):,} of them have another answer than the first, as {_quoted(others[0])}" if others else ""
    note = f"{len(repeats):,} repeated questions left out (data.deduplicate), as {_quoted(repeats[0])}{doubt}"
    return list(first.values()), [note]


def without_overlap(
    candidates: Sequence[Candidate], evaluations: Mapping[str, Sequence[Candidate]], drop: bool
) -> Kept:
    """Keep the candidates whose question is in no evaluation.

    Args:
        evaluations: the name of each set, for messages, and its problems.
        drop: leave out what overlaps, instead of raising.

    Raises:
        DataError: a question is in an evaluation, and `drop` is false; says how many, in which, and one of them.
    """
    kept = list(candidates)
    notes = []
    for name, evaluation in evaluations.items():
        keys = {candidate.key for candidate in evaluation}
        shared = [candidate for candidate in kept if candidate.key in keys]
        if not shared:
            continue
        what = f"{len(shared):,} of {len(candidates):,} training problems also occur in {name}, as {_quoted(shared[0])}"
        if not drop:
            raise DataError(
                f"data.overlap refuse: {what}. A score on them would measure memory: take them out of the training "
                "data, or leave them out of training with data.overlap: drop"
            )
        notes.append(f"{what}: left out (data.overlap: drop)")
        kept = [candidate for candidate in kept if candidate.key not in keys]
    return kept, notes


def without_long_prompts(candidates: Sequence[Candidate], longest: int, count: Callable[[Problem], int]) -> Kept:
    """Keep the candidates whose prompt has at most `longest` tokens, as `count` counts them."""
    kept = [candidate for candidate in candidates if count(candidate.problem) <= longest]
    left_out = len(candidates) - len(kept)
    return kept, [f"{left_out:,} prompts longer than data.max_prompt_tokens {longest:,} left out"] if left_out else []


def by_pass_rate(candidates: Sequence[Candidate], wanted: PassRate) -> Kept:
    """Keep the candidates that were solved at a rate in [min, max].

    Raises:
        DataError: the file cannot be read, or measured none of these problems.
    """
    rates = _measured_rates(Path(wanted.file))
    measured = [candidate for candidate in candidates if candidate.problem.id in rates]
    if not measured:
        raise DataError(
            f"data.pass_rate.file {wanted.file}: measured {len(rates):,} problems, and none of the {len(candidates):,} "
            "training problems. A problem's id is made of its prompt and answer: evaluate the same data with the same "
            "columns and template"
        )
    kept = [candidate for candidate in measured if wanted.min <= rates[candidate.problem.id] <= wanted.max]
    outside = len(measured) - len(kept)
    unmeasured = len(candidates) - len(measured)
    note = (
        f"{outside:,} problems with a pass rate outside {wanted.min:g} … {wanted.max:g} left out, "
        f"and {unmeasured:,} that {wanted.file} did not measure"
    )
    return kept, [note]


def as_candidates(problems: Sequence[Problem], where: str) -> list[Candidate]:
    """Wrap the problems of a task or suite called `where`, whose questions are their prompts."""
    return [Candidate(problem, prompt_key(problem.prompt), where) for problem in problems]


def _measured_rates(path: Path) -> dict[str, float]:
    """Return the share of right answers of each problem, by its id."""
    field = "data.pass_rate.file"
    if not os.path.isfile(path):
        raise DataError(
            f"{field} {path}: there is no file {path.absolute()}; give the SUITE.jsonl that `arl eval` writes"
        )
    results: dict[str, list[Any]] = {}
    for row in read_rows(path, field):
        problem_id = row.values.get("problem_id")
        correct = row.values.get("correct")
        is_number = isinstance(correct, int | float) and abs(correct) <= LARGEST_REWARD  # NaN is none
        if problem_id is None or not is_number:
            raise DataError(
                f"{row.place}: problem_id = {problem_id!r}, correct = {correct!r}: needs both columns, and correct a "
                f"number of at most {LARGEST_REWARD:g}, as `arl eval` writes them"
            )
        results.setdefault(str(problem_id), []).append(correct)
    return {problem_id: sum(correct) / len(correct) for problem_id, correct in results.items()}


def _quoted(candidate: Candidate) -> str:
    """Return the place and the beginning of a question."""
    return f'{candidate.place} "{_shown(candidate.problem)}"'


def _shown(problem: Problem) -> str:
    """Return the beginning of a question on one line."""
    prompt = problem.prompt
    text = prompt[-1]["content"] if isinstance(prompt, list) and prompt else str(prompt)
    flat = " ".join(text.split())
    return flat if len(flat) <= 80 else f"{flat[:77]}…"
