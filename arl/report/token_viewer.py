"""Choose episodes of a report's runs to show token by token: right, wrong, ungraded and lost ones, over all steps.

Token ids become text by the tokenizer of the run, which may be living, without torch or transformers.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct

from arl.errors import DataError
from arl.metrics.batch import is_right
from arl.metrics.names import FIRST_AGES
from arl.metrics.sampled_episode import facts, load_tokenizer, sample_of, title, token_texts
from arl.metrics.trajectory_files import SCHEMA, read_batches, read_trajectories, trajectory_files
from arl.report.arms import Arm
from arl.types import NOT_SAMPLED

MAX_EPISODES = 60  # of a page
MAX_FILES = 4  # of a run
MAX_TOKENS = 1_000  # of an episode
MAX_CHARACTERS = 20_000  # of a prompt
SCALARS = ["trained_at", "unshaped_reward", "reward_parts"]
LOGPROBS = ("behavior_logprobs", "proximal_logprobs", "current_logprobs")

T = TypeVar("T")


class ShownToken(Struct, frozen=True):
    """Hold one token as the page shows it."""

    text: str
    kind: str  # class of its style, by its age
    hint: str  # its numbers


class ShownEpisode(Struct, frozen=True):
    """Hold one episode as the page shows it."""

    title: str
    facts: str
    prompt: str
    tokens: list[ShownToken]  # of the response, the first MAX_TOKENS


def choose_episodes(arms: Sequence[Arm], notes: list[str]) -> list[ShownEpisode]:
    """Read some episodes of the first seed of each arm, the same ones each time.

    Args:
        notes: gets a line for each file that is left out.
    """
    shown = []
    for arm in arms:
        run = arm.runs[0]
        rows = list(_rows(run.directory, max(1, MAX_EPISODES // len(arms)), notes))
        tokenizer = load_tokenizer(run.directory, run.recipe.get("model.path"))
        name = f"{arm.name}, seed {run.seed}"
        for row in rows:
            start = row["prompt_length"]
            shown_ids = row["token_ids"][start : start + MAX_TOKENS]
            texts = token_texts(tokenizer, shown_ids) if tokenizer else [f"{token} " for token in shown_ids]
            shown.append(_show(name, row, texts))
    return shown


def _rows(run: Path, count: int, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield rows of a run, an equal number of each outcome as far as there are any."""
    outcomes: dict[str, list[tuple[Path, int]]] = {}
    for file in spread(trajectory_files(run), MAX_FILES):
        try:
            rows = read_trajectories(file, SCALARS).to_pylist()
        except DataError as error:
            notes.append(str(error))
            continue
        for place, row in enumerate(rows):
            outcomes.setdefault(_outcome(row), []).append((file, place))
    of_each = math.ceil(count / max(len(outcomes), 1))
    chosen = sorted(place for places in outcomes.values() for place in spread(places, of_each))
    for file in dict.fromkeys(file for file, _ in chosen):
        places = [place for other, place in chosen if other == file]
        start = 0
        for batch in read_batches(file, SCHEMA.names):  # because a file of long episodes is large
            here = [place - start for place in places if start <= place < start + batch.num_rows]
            yield from batch.take(pa.array(here, pa.int64())).to_pylist()
            start += batch.num_rows


def _outcome(row: dict[str, Any]) -> str:
    if row["trained_at"] is None:
        return "lost"
    if row["unshaped_reward"] is None:
        return "not scored"
    return "right" if is_right(row["unshaped_reward"], dict(row["reward_parts"] or ())) else "wrong"


def spread(candidates: Sequence[T], count: int) -> list[T]:
    """Choose `count` of the candidates at even distances, in their order; all if there are no more.

    >>> spread("abcdefghij", 4)
    ['a', 'd', 'g', 'j']
    """
    places = np.linspace(0, len(candidates) - 1, min(count, len(candidates)))
    return [candidates[round(place)] for place in places]


def _show(run: str, row: dict[str, Any], texts: Sequence[str]) -> ShownEpisode:
    sample = sample_of(row)
    error = f"   graded 0: {sample.error}" if sample.error else ""
    return ShownEpisode(
        title=f"{run} · {_outcome(row)} · {title(sample)}",
        facts=f"{facts(sample)}{error}",
        prompt=row["prompt"][:MAX_CHARACTERS],
        tokens=[_token(row, place, text) for place, text in enumerate(texts, row["prompt_length"])],
    )


def _token(row: dict[str, Any], i: int, text: str) -> ShownToken:
    version = row["policy_versions"][i]
    if version == NOT_SAMPLED:
        return ShownToken(text, "prompted", "not sampled")
    age = 0 if row["trained_at"] is None else row["trained_at"] - version
    kind = f"age-{sum(first <= age for first in FIRST_AGES) - 1}"
    hint = [f"version {version}, age {age}"]
    for name in LOGPROBS:
        if row[name] is not None:
            hint.append(f"{name.replace('_', ' ').removesuffix('s')} {_number(row[name][i])}")
    if row["advantages"] is not None:
        hint.append(f"advantage {_number(row['advantages'][i])}")
    if not row["loss_mask"][i]:
        hint.append("not in the loss")
    return ShownToken(text, kind, ", ".join(hint))


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"
