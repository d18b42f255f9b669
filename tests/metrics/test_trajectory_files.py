"""Trajectory files hold what the model saw and said, what it earned and what training computed of it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from arl.errors import RunError
from arl.metrics.trajectory_files import EpisodeRow, TrajectoryFiles, group_rows, split_tokens
from arl.types import TRAINED, Problem, TrainedTokens
from tests.fakes import NullCodec
from tests.metrics.test_recorder import BATCH, FAILED_GROUP

NAN = math.nan


def tokens_of_batch() -> TrainedTokens:
    """What a step computed of BATCH, whose episodes have 3, 1, 2 and 2 loss tokens; the last one was left out."""
    return TrainedTokens(
        advantages=np.array([1, 1, 1, -1, 0.5, 0.5, 0, 0], np.float32),
        per_token=False,
        current_logprobs=np.array([-1, -2, -3, -4, -5, -6, NAN, NAN], np.float32),
    )


def rows_of(tokens: TrainedTokens | None) -> list[EpisodeRow]:
    parts = split_tokens(BATCH, tokens)
    return [
        row
        for group, own in zip(BATCH.groups, parts, strict=True)
        for row in group_rows(group, TRAINED, BATCH.version, own)
    ]


def written(directory: Path, rows: list[EpisodeRow], **options: Any) -> list[dict[str, Any]]:
    files = TrajectoryFiles(directory / "trajectories", 0, **options)
    files.write(rows)
    files.close()
    found: list[dict[str, Any]] = pq.read_table(directory / "trajectories").to_pylist()
    return found


def test_logprobs_stand_at_their_tokens_and_are_null_where_none_were_computed(tmp_path: Path) -> None:
    rows = written(tmp_path, rows_of(tokens_of_batch()))
    assert [row["current_logprobs"] for row in rows] == [
        [None, None, -1.0, -2.0, -3.0],
        [None, None, -4.0],
        [None, None, -5.0, -6.0],
        None,
    ]
    assert [row["proximal_logprobs"] for row in rows] == [None] * 4
    assert [row["advantage"] for row in rows] == [1.0, -1.0, 0.5, 0.0]
    assert [row["advantages"] for row in rows] == [None] * 4


def test_text_answer_and_parts_are_written_with_each_episode(tmp_path: Path) -> None:
    first, second = FAILED_GROUP.trajectories
    graded = msgspec.structs.replace(second, reward_parts={"correct": 0.5, "format": 1.0}, reward_error="timed out")
    group = msgspec.structs.replace(FAILED_GROUP, problem=Problem("c", "42"), trajectories=(first, graded))
    rows = written(tmp_path, group_rows(group, "failed", None), codec=NullCodec())
    columns = ("prompt", "response", "answer", "reward_parts", "reward_error", "advantage")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("0 1", "2 3", "42", [], "", None),
        ("0 1", "2 3 4 5", "42", [("correct", 0.5), ("format", 1.0)], "timed out", None),
    ]


class BrokenCodec(NullCodec):
    def decode_all(self, sequences: Sequence[Sequence[int]], special_tokens: bool = False) -> list[str]:
        raise OSError("no space left")


def test_what_cannot_be_written_is_raised_before_a_checkpoint_counts_on_it(tmp_path: Path) -> None:
    files = TrajectoryFiles(tmp_path / "trajectories", 0, BrokenCodec(), threaded=True)
    files.write(rows_of(None))
    with pytest.raises(RunError, match=r"trajectories: cannot be written \(no space left\)"):  # noqa: PT012
        files.flush()
        files.settle()
    assert not list((tmp_path / "trajectories").iterdir())
