"""Load problems, from a task or from files, and filter those for training.

task or files ─► candidates ─► held out | training ─► filters ─► ProblemSets ─► arl.data.problem_order

filters: equal questions once ─► none of an evaluation ─► solved at the wanted rate ─► short prompts
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from arl.config.data_section import PassRate
from arl.config.recipe import Data
from arl.config.scoring_sections import HELD_OUT
from arl.data.hub import find_files
from arl.data.row_problems import Candidate, Question, RowReader, file_candidates, prompt_question, shortened
from arl.data.table_rows import column_names, read_rows
from arl.errors import DataError
from arl.tasks.base import is_held_out
from arl.tasks.registry import open_task
from arl.types import LARGEST_REWARD, Problem

AnswerCheck = Callable[[str], str]
"""Says why no response could match an answer; empty: one can."""

MAX_CHECKED_ANSWERS = 20_000  # different ones, some seconds' worth; of more, as many that are evenly spread


class ProblemSets(Struct, frozen=True):
    """Hold the recipe's own problems."""

    training: list[Problem]
    held_out: list[Problem]
    longest: int = 0  # training prompt with a full answer, tokens
    notes: tuple[str, ...] = ()  # what was left out, and how many


class Sides(Struct, frozen=True):
    """Hold what a task or files give for training and for evaluation, before it is filtered."""

    training: list[Candidate]
    held_out: list[Candidate]
    notes: list[str]


def load_problems(data: Data, seed: int) -> ProblemSets:
    """Load or make the problems, in the order of the files or of the task, and filter those for training.

    Args:
        seed: of a task that draws its problems.

    Raises:
        DataError: see read_sides and filtered.
    """
    return filtered(data, read_sides(data, seed))


def read_sides(data: Data, seed: int) -> Sides:
    """Read or make the problems of both sides.

    Raises:
        DataError: no such file, or a row that is no problem.
    """
    notes: list[str] = []
    if data.task is not None:
        task = open_task(data)
        training = as_candidates(task.problems("training", seed), data.task)
        notes += task.notes
        held_out = as_candidates(task.problems("evaluation", seed), data.task)
        notes += task.notes
    else:
        training, held_out = _of_files(data, notes)
    return Sides(training, held_out, notes)


def filtered(
    data: Data,
    sides: Sides,
    evaluations: Mapping[str, Sequence[Candidate]] = {},
    fitting: Callable[..., tuple[list[Candidate], int]] | None = None,
    unusable: AnswerCheck | None = None,
) -> ProblemSets:
    """Filter the problems for training.

    Args:
        evaluations: beside the held-out problems, by a name for messages: what must not overlap with training problems.
        fitting: measures prompts, as arl.run.prompt_lengths.fitting_prompts with its first arguments.
        unusable: checks gold answers; None: any will do.

    Raises:
        DataError: nothing to train on, an overlap that is to be refused, or most answers are unusable.
    """
    training = sides.training
    held_out = sides.held_out
    notes = list(sides.notes)
    if data.deduplicate and data.eval_fraction is None:  # else it was done before the split
        training = without_repeats(training, notes)
    evaluations = {"the problems of the evaluation": held_out, **evaluations}
    training = without_overlap(training, evaluations, notes, drop=data.overlap == "drop")
    if data.pass_rate is not None:
        training = _by_pass_rate(training, data.pass_rate, notes)
    longest = 0
    if fitting is not None:
        training, longest = fitting(training, notes)
        fitting(held_out, notes, HELD_OUT)
    if not training:
        said = "".join(f"; {note}" for note in notes)
        raise DataError(
            f"{_source(data)}: {len(held_out)} problems are held out and leave none to train on; give more, hold out "
            f"fewer, or filter less{said}"
        )
    if unusable is not None:
        notes += check_answers([*training, *held_out], data, unusable)
    return ProblemSets(
        training=[candidate.problem for candidate in training],
        held_out=[candidate.problem for candidate in held_out],
        longest=longest,
        notes=tuple(notes),
    )


def _of_files(data: Data, notes: list[str]) -> tuple[list[Candidate], list[Candidate]]:
    """Return the problems for training, and those that are held out."""
    assert data.path is not None
    candidates = _read(data, data.path, "data.path", notes)
    if data.eval_path is not None:
        return candidates, _read(data, data.eval_path, "data.eval_path", notes)
    assert data.eval_fraction is not None
    if data.deduplicate:  # before the split, which could put one question on both sides
        candidates = without_repeats(candidates, notes)
    sides: tuple[list[Candidate], list[Candidate]] = ([], [])
    for candidate in candidates:
        sides[is_held_out(candidate.problem, data.eval_fraction)].append(candidate)
    return sides


def _read(data: Data, spec: str, field: str, notes: list[str]) -> list[Candidate]:
    reader = RowReader(data.columns, data.template)
    candidates, note = file_candidates(find_files(spec, field), reader, field, data.malformed == "skip")
    notes += note
    return candidates


# ---- filters: each returns what it keeps, and adds a note that counts what it leaves out


def without_repeats(candidates: Sequence[Candidate], notes: list[str]) -> list[Candidate]:
    """Keep the first of all candidates with an equal question."""
    first: dict[Question, Candidate] = {}
    repeats = [each for each in candidates if first.setdefault(each.question, each) is not each]
    if repeats:
        notes.append(f"{len(repeats):,} repeated questions left out (data.deduplicate), as {repeats[0]}")
    return list(first.values())


def without_overlap(
    candidates: Sequence[Candidate], evaluations: Mapping[str, Sequence[Candidate]], notes: list[str], drop: bool
) -> list[Candidate]:
    """Keep the candidates whose question is in no evaluation.

    Args:
        evaluations: the name of each set, for messages, and its problems.
        drop: leave out what overlaps, instead of raising.

    Raises:
        DataError: a question is in an evaluation, and `drop` is false; says how many, in which, and one of them.
    """
    kept = list(candidates)
    for name, evaluation in evaluations.items():
        questions = {candidate.question for candidate in evaluation}
        shared = [candidate for candidate in kept if candidate.question in questions]
        if not shared:
            continue
        what = f"{len(shared):,} of {len(candidates):,} training problems also occur in {name}, as {shared[0]}"
        if not drop:
            raise DataError(
                f"data.overlap refuse: {what}. A score on them would measure memory: take them out of the training "
                "data, or leave them out of training with data.overlap: drop"
            )
        notes.append(f"{what}: left out (data.overlap: drop)")
        kept = [candidate for candidate in kept if candidate.question not in questions]
    return kept


def _by_pass_rate(candidates: Sequence[Candidate], wanted: PassRate, notes: list[str]) -> list[Candidate]:
    """Keep the candidates that were solved at a rate in [min, max].

    Raises:
        DataError: the file cannot be read, or measured none of these problems.
    """
    rates = _measured_rates(wanted.file)
    measured = [candidate for candidate in candidates if candidate.problem.id in rates]
    if not measured:
        raise DataError(
            f"data.pass_rate.file {wanted.file}: measured {len(rates):,} problems, and none of the {len(candidates):,} "
            "training problems. A problem's id is made of its prompt and answer: evaluate the same data with the same "
            "columns and template"
        )
    kept = [candidate for candidate in measured if wanted.min <= rates[candidate.problem.id] <= wanted.max]
    notes.append(
        f"{len(measured) - len(kept):,} problems with a pass rate outside {wanted.min:g} … {wanted.max:g} left out, "
        f"and {len(candidates) - len(measured):,} that {wanted.file} did not measure"
    )
    return kept


def check_answers(candidates: Sequence[Candidate], data: Data, unusable: AnswerCheck) -> list[str]:
    """Count the gold answers that no response can match.

    Returns:
        A note, if there are any.

    Raises:
        DataError: more than half of the answers are unusable.
    """
    answers = list(dict.fromkeys(candidate.problem.answer for candidate in candidates))
    reasons = {answer: unusable(answer) for answer in answers[:: len(answers) // MAX_CHECKED_ANSWERS + 1]}
    checked = [candidate for candidate in candidates if candidate.problem.answer in reasons]
    useless = [candidate for candidate in checked if reasons[candidate.problem.answer]]
    if not useless:
        return []
    first = useless[0]
    answer = first.problem.answer
    what = (
        f"{len(useless):,} of {len(checked):,} gold answers can be matched by no response, as that of {first.place}, "
        f"{shortened(answer)}: {reasons[answer]}"
    )
    if 2 * len(useless) <= len(checked):
        return [what]
    others = ", ".join(column_names(first.problem.metadata)[:12]) or "none"
    raise DataError(
        f"{_source(data)}: {what}. Correct the answers, or name their column in data.columns.answer (the other columns "
        f"are {others}); of a list, name an element, as in final_answer.0"
    )


def _source(data: Data) -> str:
    return f"data.path {data.path}" if data.path is not None else f"data.task {data.task}"


def as_candidates(problems: Sequence[Problem], where: str) -> list[Candidate]:
    """Wrap the problems of a task or suite called `where`, whose questions are their prompts."""
    return [Candidate(problem, Question(prompt_question(problem.prompt)), where) for problem in problems]


def _measured_rates(file: str) -> dict[str, float]:
    """Return the share of right answers of each problem, by its id."""
    results: dict[str, list[float]] = {}
    for row in read_rows(Path(file), "data.pass_rate.file"):
        problem_id = row.values.get("problem_id")
        correct = row.values.get("correct")
        if problem_id is None or not isinstance(correct, int | float) or not abs(correct) <= LARGEST_REWARD:
            raise DataError(
                f"{row.place}: problem_id = {problem_id!r}, correct = {correct!r}: needs both columns, and correct a "
                f"number of at most {LARGEST_REWARD:g}, as `arl eval` writes them"
            )
        results.setdefault(str(problem_id), []).append(correct)
    return {problem_id: sum(correct) / len(correct) for problem_id, correct in results.items()}
