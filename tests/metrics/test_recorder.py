"""Metrics say what their definitions say."""

import contextlib
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from arl import clock
from arl.metrics.console import ConsoleDisplay
from arl.metrics.names import METRICS, Record
from arl.metrics.recorder import Meters, Recorder
from arl.types import (
    FAILED,
    REJECTED,
    Accuracy,
    Batch,
    PauseParts,
    Problem,
    StepResult,
    StepWaits,
    SwapReport,
    Trajectory,
    TrajectoryGroup,
)
from tests.metrics.every_step import EVALUATION


def trajectory(versions: list[int], reward: float, truncated: bool = False, prompt: int = 2) -> Trajectory:
    """Make a prompt of two tokens, and one sampled token per version."""
    all_versions = np.array([-1] * prompt + versions, dtype=np.int32)
    return Trajectory(
        token_ids=np.arange(len(all_versions), dtype=np.int32),
        behavior_logprobs=np.where(all_versions >= 0, -0.5, 0.0).astype(np.float32),
        policy_versions=all_versions,
        loss_mask=all_versions >= 0,
        prompt_length=prompt,
        reward=reward,
        unshaped_reward=reward,
        truncated=truncated,
    )


BATCH = Batch(
    version=3,
    groups=(
        TrajectoryGroup(0, Problem("a"), (trajectory([1, 1, 2], 1.0), trajectory([3], 0.0)), 1, 0.0, 2, 0.0),
        TrajectoryGroup(
            1, Problem("b"), (trajectory([3, 3], 1.0), trajectory([2, 3], 0.0, truncated=True)), 2, 0.0, 3, 0.0
        ),
    ),
)

FAILED_GROUP = TrajectoryGroup(
    2, Problem("c"), (trajectory([2, 3], math.nan), trajectory([2, 2, 3, 3], 0.5)), 2, 1.5, 3, 2.5
)


def silent() -> ConsoleDisplay:
    return ConsoleDisplay(Console(file=io.StringIO()))


@contextlib.contextmanager
def idle_recorder(directory: Path, admitted: int = 9, open_tokens: int = 0) -> Iterator[Recorder]:
    """Record engines that are never busy and never lost."""
    with Recorder(directory, True, [], silent()) as recorder:
        recorder.watch(lambda: Meters(admitted=admitted, open_tokens=open_tokens, epochs=0.25))
        yield recorder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Record one step, one swap, one lost group and one evaluation in a run directory."""

    async def main() -> None:
        with idle_recorder(tmp_path, admitted=5, open_tokens=7) as recorder:
            recorder.group_finished(BATCH.groups[0])
            recorder.group_finished(BATCH.groups[1])
            recorder.group_lost(FAILED_GROUP, FAILED, ValueError("no"))
            recorder.swapped(SwapReport(3, 0.25, 0.5, parts=PauseParts(drain=0.125, load=0.0625)))
            recorder.step_finished(BATCH, StepResult(4, {"loss": 0.125}), StepWaits(1.0, 0.5, 0.25))
            recorder.evaluated(Accuracy(0.75, 512, 4), recorder.seconds)
            assert recorder.state.token_ages == {0: 4, 1: 2, 2: 2}
            assert recorder.state.num_spanning == 2

    clock.run(main)
    return tmp_path


def test_a_record_follows_the_formulas(run: Path) -> None:
    record, evaluation = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    expected = {
        "staleness/max": 2,
        "staleness/mean": (2 + 0 + 0 + 1) / 4,
        "token_age/mean": (4 * 0 + 2 * 1 + 2 * 2) / 8,
        "versions/spanning_fraction": 0.5,
        "token_age/histogram": [4, 2, 2],
        "dispatch_age/mean": 1.5,
        "queue_age/mean": 0.5,
        "audit/length_generated": (2 + 2 + 3) / 3,
        "audit/length_failed": 3,
        "audit/reward_generated": 0.5,
        "audit/groups_in_flight": 5 - 2 - 1,
        "wait/groups_s": 1.0,
        "groups/all_right": 0.0,  # of rewards without a part `correct`
        "groups/all_wrong": 0.0,
        "reward/trained_mean": 0.5,
        "reward/trained_std": 0.5,
        "reward/generated_mean": (1.0 + 0.0 + 1.0 + 0.0 + 0.5) / 5,
        "truncated": 0.25,
        "length/mean": 2.0,
        "length/max": 3,
        "length/right_mean": 2.5,
        "length/wrong_mean": 1.5,
        "tokens/trained": 8,
        "tokens/generated": 2 * 4 + 6 + 7,
        "sync/seconds": 0.5,
        "sync/pause_seconds": 0.25,
        "sync/drain_seconds": 0.125,
        "sync/load_seconds": 0.0625,
        "sync/swaps": 1,
        "loss": 0.125,
    }
    assert {name: record[name] for name in expected} == pytest.approx(expected)
    assert METRICS.keys() >= evaluation.keys() >= EVALUATION


def graded(group_id: int, *correct: float, error: str = "") -> TrajectoryGroup:
    """Make a group of episodes of 3, 4, … tokens, whose rewards name the part `correct`, and two more."""
    episodes = [
        msgspec.structs.replace(
            trajectory([3] * (3 + i), 0.0),
            reward_parts={"correct": value, "format": 1.0, "errors": 0.5},
            reward_error=error,
        )
        for i, value in enumerate(correct)
    ]
    return TrajectoryGroup(group_id, Problem("a"), tuple(episodes), 3, 0.0, 3, 0.0)


def test_right_and_wrong_groups_are_shares_of_those_that_were_scored(tmp_path: Path) -> None:
    mixed, right, wrong = graded(0, 0.0, 1.0), graded(1, 1.0, 0.5), graded(2, 0.0, 0.4, error="no answer in time")

    async def main() -> list[Record]:
        with idle_recorder(tmp_path) as recorder:
            recorder.group_finished(mixed)
            recorder.group_lost(right, REJECTED, None)
            recorder.group_lost(wrong, REJECTED, None)
            recorder.group_lost(FAILED_GROUP, FAILED, None)  # one episode of it was not scored
            recorder.step_finished(Batch(3, (mixed,)), StepResult(4, {}), StepWaits())
            recorder.step_finished(Batch(4, (wrong,)), StepResult(5, {}), StepWaits())
            return list(recorder.read_records())

    first, second = clock.run(main)
    shares = [first[f"groups/{name}"] for name in ("all_right", "all_wrong", "equal_rewards", "rejection_rate")]
    assert shares == [1 / 3, 1 / 3, 1.0, 2 / 4]
    assert (first["reward/errors"], second["reward/errors"]) == (2, 0)
    assert (first["length/right_mean"], first["length/wrong_mean"]) == (4.0, 3.0)
    assert "length/right_mean" not in second
    assert not {"groups/all_right", "groups/rejection_rate", "reward/generated_mean"} & second.keys()
    assert first["epochs"] == 0.25
    assert (first["reward/correct"], first["reward/format"]) == (0.5, 1.0)
    assert first["reward/errors_"] == 0.5, "a part takes no name of arl's own"
