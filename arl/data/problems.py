"""Load problems, from a task or from files, and hand the training ones out, each epoch in its own shuffle.

task or files ─► candidates ─► held out | training ─► filters ─► ProblemSets ─► ProblemOrder ─► one problem after
                                                                                 another, epoch after epoch
"""

import random
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from arl.config.recipe import Data
from arl.data.problem_filters import (
    as_candidates,
    by_pass_rate,
    without_long_prompts,
    without_overlap,
    without_repeats,
)
from arl.data.row_problems import Candidate, RowReader, file_candidates
from arl.data.source_files import find_files
from arl.errors import DataError
from arl.tasks.base import is_held_out
from arl.tasks.registry import open_suite, open_task
from arl.types import Problem


class ProblemSets(Struct, frozen=True):
    """Hold the problems of a run."""

    training: list[Problem]
    held_out: list[Problem]
    suites: dict[str, list[Problem]] = {}  # name of a task -> the problems of its evaluation
    notes: tuple[str, ...] = ()  # what was left out, and how many


class _Split(Struct, frozen=True):
    """Hold both sides before the filters."""

    training: list[Candidate]
    held_out: list[Candidate]
    notes: list[str]


def load_problems(
    data: Data,
    seed: int,
    suites: Sequence[str] = (),
    count_tokens: Callable[[Problem], int] | None = None,
) -> ProblemSets:
    """Load or make the problems, in the order of the files or of the task, and filter those for training.

    Args:
        seed: of a task that draws its problems.
        suites: names of tasks whose evaluation must not overlap with the training problems.
        count_tokens: tokens of a problem's prompt; needed with data.max_prompt_tokens.

    Raises:
        DataError: no such file, a row that is no problem, nothing to train on, or an overlap that is to be refused.
        RecipeError: a suite is no task.
    """
    split = _of_task(data, seed) if data.task is not None else _of_files(data)
    measured = {name: as_candidates(load_suite(name), name) for name in suites}
    own = {"the problems of the evaluation": split.held_out}
    evaluations = own | {f"the suite {name}": candidates for name, candidates in measured.items()}
    training, notes = _filtered(split, evaluations, data, count_tokens)
    if not training:
        said = "".join(f"; {note}" for note in notes)
        raise DataError(
            f"{data.path or data.task}: {len(split.held_out)} problems are held out and leave none to train on; give "
            f"more, hold out fewer, or filter less{said}"
        )
    return ProblemSets(
        training=_problems(training),
        held_out=_problems(split.held_out),
        suites={name: _problems(candidates) for name, candidates in measured.items()},
        notes=tuple(notes),
    )


def load_suite(name: str) -> list[Problem]:
    """Return all problems of a suite: those of a task's evaluation, with the task's default options.

    Raises:
        RecipeError: no task has this name; offers the nearest.
        DataError: its files are missing, or it has no problem.
    """
    problems = list(open_suite(name).problems("evaluation", seed=0))
    if not problems:
        raise DataError(f"eval.suites {name}: has no problem in its evaluation; leave it out")
    return problems


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
    return _Split(
        training=[each for each in candidates if not is_held_out(each.problem, data.eval_fraction)],
        held_out=[each for each in candidates if is_held_out(each.problem, data.eval_fraction)],
        notes=notes,
    )


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
