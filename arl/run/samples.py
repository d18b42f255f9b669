"""Read single episodes of a run from its trajectory files, while it lives or afterwards.

    RUN/trajectories/*.parquet ─► the rows of one step, or of one problem ─► Wanted ─► SampledEpisode

A trajectory file has its name only when it is complete, so a living run is read like a finished one. What it has
trained since its last file is not there yet.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow.compute as pc
from msgspec import Struct

from arl.errors import InputError
from arl.metrics.run_status import require_run
from arl.metrics.sampled_episode import SampledEpisode, load_tokenizer, sample_of
from arl.metrics.trajectory_files import read_batches, read_trajectories, trajectory_files
from arl.types import TRAINED

Outcome = Literal["any", "right", "wrong", "truncated"]
COLUMNS = [
    *("fate", "trained_at", "group_id", "sample", "problem_id", "prompt", "response", "answer"),
    *("reward", "unshaped_reward", "reward_parts", "reward_error", "advantage", "policy_versions", "truncated"),
    *("token_ids", "loss_mask", "prompt_length"),
]


class Wanted(Struct, frozen=True):
    """Say which episodes of a run to show."""

    count: int = 4
    step: int | None = None  # as in metrics.jsonl; None: the newest one that is in a file
    problem: str | None = None  # its id; then lost episodes are shown as well, the newest first
    outcome: Outcome = "any"


def read_samples(run: Path, wanted: Wanted) -> tuple[list[SampledEpisode], str]:
    """Read the episodes that `wanted` describes, and say in one line how much of the run its files cover.

    Raises:
        InputError: there is no such run, step, episode or complete trajectory file.
        DataError: an older arl wrote the files, without text; or one of them is damaged.
    """
    require_run(run)
    files = trajectory_files(run)
    if not files:
        raise InputError(
            f"{run}: no complete trajectory file yet, or output.trajectories=false; a file ends every 20 steps, at a "
            "checkpoint and at the end of the run"
        )
    last = [pc.max(read_trajectories(file, ["trained_at"])["trained_at"]).as_py() for file in files]
    newest = max(0 if step is None else step + 1 for step in last)  # None: the file has lost episodes only
    coverage = f"steps 1 to {newest} are in complete files"
    step = newest if wanted.step is None else wanted.step
    of_step = pc.field("trained_at") == step - 1
    if wanted.problem is None:
        rows = _read(files, of_step & (pc.field("fate") == TRAINED))
        rows.sort(key=lambda row: row["sample"])  # one of each problem before a second one
        if not rows:
            raise InputError(f"--step {step}: of {run} {coverage}")
    else:
        chosen = pc.field("problem_id") == wanted.problem
        rows = _read(files, chosen if wanted.step is None else chosen & of_step)[::-1]  # the newest first
        if not rows:
            raise InputError(
                f"--problem {wanted.problem}: {run} has no episode of it in complete files; ids are in the headers of "
                "episodes that `arl samples` shows"
            )
    is_shown: dict[Outcome, Callable[[SampledEpisode], bool]] = {
        "any": lambda sample: True,
        "right": lambda sample: sample.is_right is True,
        "wrong": lambda sample: sample.is_right is False,
        "truncated": lambda sample: sample.truncated,
    }
    tokenizer = load_tokenizer(run)
    matching = list(filter(is_shown[wanted.outcome], (sample_of(row, tokenizer) for row in rows)))
    if not matching:
        raise InputError(
            f"--{wanted.outcome}: none of the {len(rows)} episodes found is; leave it out, or choose another --step"
        )
    return matching[: wanted.count], coverage


def _read(files: Sequence[Path], chosen: pc.Expression) -> list[dict[str, Any]]:
    """Read the chosen rows, in batches, because a file may be larger than memory."""
    rows: list[dict[str, Any]] = []
    for file in files:
        for batch in read_batches(file, COLUMNS):
            rows += batch.filter(chosen).to_pylist()
    return rows
