"""Read the trajectories that a report shows, spread over runs, steps and outcomes, and pack them for its page.

TrajectorySource ─► choose_rows ─► whole rows ─► ShownTrajectory ─► what fits ─► ViewerData
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from arl.errors import DataError
from arl.report.token_columns import COLUMNS as PACKED
from arl.report.token_columns import MOST_TOKENS, PackedTokens, pack_tokens
from arl.report.token_texts import TokenTexts
from arl.report.trajectory_choice import ChosenRow, choose_rows, rightness
from arl.report.trajectory_source import TrajectorySource, left_out, read_rows, rows_by_file
from arl.types import NOT_SAMPLED

MOST_TRAJECTORIES = 400
MOST_BYTES = 6_000_000  # of all trajectories in a page
MOST_CHARACTERS = 200_000  # of a prompt, a response or an answer
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly whatever their number
COLUMNS = (
    *("fate", "trained_at", "group_id", "sample", "problem_id", "prompt", "response", "answer", "prompt_length"),
    *("reward", "unshaped_reward", "reward_parts", "reward_error", "truncated", "advantage", "advantages"),
    *("token_ids", "behavior_logprobs", "policy_versions", "loss_mask", "proximal_logprobs", "current_logprobs"),
)


NumberedRow = tuple[int, dict[str, Any]]  # the number of its run, and the row of a file


class ShownTrajectory(Struct, frozen=True, kw_only=True, rename="camel"):
    """Hold one trajectory as the page shows it."""

    run: int  # its place in ViewerData.runs
    step: int | None  # that trained it, counted from 1; None: it was lost
    fate: str
    group: int
    sample: int
    problem: str
    prompt: str
    response: str
    answer: str
    reward: float | None
    unshaped_reward: float | None
    parts: dict[str, float]
    error: str
    truncated: bool
    right: bool | None  # None: not scored
    advantage: float | None
    age: int | None  # of its oldest token when it was trained
    num_tokens: int  # after the prompt
    tokens: PackedTokens


class ShownRun(Struct, frozen=True):
    """Name a run, the arm whose color it has, and the table that holds the texts of its tokens."""

    label: str
    arm: int
    vocabulary: int | None  # its place in ViewerData.vocabularies; None: tokens are shown as ids


class ViewerData(Struct, frozen=True, kw_only=True, rename="camel"):
    """Hold everything that the viewer of a page shows."""

    runs: list[ShownRun]
    vocabularies: list[dict[int, str]]  # text of each token id that occurs
    trajectories: list[ShownTrajectory]
    num_episodes: int  # in all files
    notes: list[str]


def choose_trajectories(
    sources: Sequence[TrajectorySource],
    most: int = MOST_TRAJECTORIES,
    most_bytes: int = MOST_BYTES,
) -> ViewerData:
    """Read a sample of the trajectories of some runs, the same one each time."""
    notes: list[str] = []
    texts = TokenTexts()
    runs = []
    of_runs = []
    num_episodes = 0
    for number, source in enumerate(sources):
        notes += source.notes
        num_episodes += source.num_rows
        quota = most // len(sources) + (number < most % len(sources))
        rows = _read(choose_rows(source.files, quota, notes), notes)
        table, note = texts.load(source.directory, source.model) if rows else (None, "")
        notes += [note] if note else []
        runs.append(ShownRun(source.label, source.arm, table))
        of_runs.append([(number, row) for row in rows])
    shown = []
    for number, row in _within(_in_turn(of_runs), most_bytes):
        shown.append(show(number, row))
        table = runs[number].vocabulary
        if table is not None:
            texts.add(table, row["token_ids"][row["prompt_length"] :][:MOST_TOKENS])
    shown.sort(key=lambda trajectory: (trajectory.run, trajectory.step or 0, trajectory.group, trajectory.sample))
    return ViewerData(
        runs=runs,
        vocabularies=texts.tables,
        trajectories=shown,
        num_episodes=num_episodes,
        notes=notes,
    )


def _read(chosen: Sequence[ChosenRow], notes: list[str]) -> list[dict[str, Any]]:
    """Read whole rows, each file once; a damaged file is noted."""
    rows: list[dict[str, Any]] = []
    by_file = rows_by_file((place.file, place.row) for place in chosen)
    for file, own in by_file.items():
        try:
            rows += read_rows(file, own, COLUMNS)
        except DataError as error:
            notes.append(left_out(error))
    return rows


def _in_turn(of_runs: Sequence[Sequence[NumberedRow]]) -> Iterator[NumberedRow]:
    """Take one row of each run, then another one of each, in an order that a cut leaves spread over the steps."""
    for turn in zip_longest(*map(_scattered, of_runs)):
        yield from (row for row in turn if row is not None)


def _scattered(rows: Sequence[NumberedRow]) -> list[NumberedRow]:
    """Order rows so that the first few of them, however many, are spread over all."""
    return [row for _, row in sorted(enumerate(rows), key=lambda item: item[0] * GOLDEN % 1)]


def _within(rows: Iterable[NumberedRow], most_bytes: int) -> Iterator[NumberedRow]:
    """Pass rows on until they take more than a number of bytes in a page; a row that is too large is left out."""
    left = most_bytes
    for number, row in rows:
        size = _page_bytes(row)
        if size <= left:
            left -= size
            yield number, row


def _page_bytes(row: Mapping[str, Any]) -> int:
    """Estimate what a row takes in a page: its texts as UTF-8, and up to five columns of four bytes as base64."""
    texts = [row[name] or "" for name in ("prompt", "response", "answer", "reward_error")]
    num_characters = sum(len(text[:MOST_CHARACTERS].encode()) for text in texts)
    num_tokens: int = min(len(row["token_ids"]) - row["prompt_length"], MOST_TOKENS)
    num_columns = 1 + sum(row[name] is not None for name in PACKED)
    return 400 + num_characters + num_tokens * num_columns * 16 // 3


def show(run: int, row: Mapping[str, Any]) -> ShownTrajectory:
    """Turn a row of a trajectory file into what the page shows."""
    trained_at = row["trained_at"]
    sampled = [version for version in row["policy_versions"] if version != NOT_SAMPLED]
    has_age = trained_at is not None and sampled
    return ShownTrajectory(
        run=run,
        step=None if trained_at is None else trained_at + 1,
        fate=row["fate"],
        group=row["group_id"],
        sample=row["sample"],
        problem=row["problem_id"],
        prompt=_cut(row["prompt"]),
        response=_cut(row["response"]),
        answer=_cut(row["answer"]),
        reward=row["reward"],
        unshaped_reward=row["unshaped_reward"],
        parts=dict(row["reward_parts"] or ()),
        error=_cut(row["reward_error"]),
        truncated=row["truncated"],
        right=rightness(row),
        advantage=row["advantage"],
        age=trained_at - min(sampled) if has_age else None,
        num_tokens=len(row["token_ids"]) - row["prompt_length"],
        tokens=pack_tokens(row),
    )


def _cut(text: str | None) -> str:
    """Return the text, and how much was left out of one that is too long."""
    if text is None:
        return ""
    left_out = len(text) - MOST_CHARACTERS
    return text if left_out <= 0 else f"{text[:MOST_CHARACTERS]}\n… {left_out:,} more characters are left out"
