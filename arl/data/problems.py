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
from arl.tasks.registry import open_task
from arl.types import Problem


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
