"""Choose which training problems stay. Every filter returns what it keeps, and a note that counts what it left out.

candidates ─► equal questions once ─► none of an evaluation ─► short prompts ─► solved at the wanted rate ─► training
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arl.config.data_section import PassRate
from arl.data.question_key import prompt_key
from arl.data.row_problems import Candidate
from arl.data.table_rows import read_rows
from arl.errors import DataError
from arl.types import LARGEST_REWARD, Problem

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
