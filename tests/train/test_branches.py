"""A forked record changes nothing but where its tokens stand: an episode counts once, whatever its branches."""

import random
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.metrics.audit import Population
from arl.metrics.batch import EndedGroups, batch_metrics
from arl.metrics.trajectory_files import TrajectoryFiles, group_rows
from arl.rollout.filters import reward_varies
from arl.train.algorithms.advantage import GRPO, RLOO, Advantage
from arl.train.packing import loss_sequences
from arl.types import NOT_SAMPLED, TRAINED, Batch, Trajectory, TrajectoryGroup
from tests.train.synthetic import batch


def forked(whole: Trajectory, rng: random.Random) -> list[Trajectory]:
    """Cut an episode into up to three branches: each samples on where the one before it ended, behind a copy of it."""
    length = len(whole.token_ids)
    cuts = sorted(rng.sample(range(whole.prompt_length + 1, length), k=min(rng.randint(0, 2), length - 1 - 15)))
    branches = []
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, length], strict=True)):
        own = np.arange(end) >= max(start, whole.prompt_length)
        branch = msgspec.structs.replace(
            whole,
            token_ids=whole.token_ids[:end],
            behavior_logprobs=np.where(own, whole.behavior_logprobs[:end], 0).astype(np.float32),
            policy_versions=np.where(own, whole.policy_versions[:end], NOT_SAMPLED).astype(np.int32),
            loss_mask=own,
            branch=number,
        )
        branches.append(branch)
    return branches


def forked_batch(drawn: Batch, rng: random.Random) -> Batch:
    groups = []
    for group in drawn.groups:
        branches = [branch for episode in group.trajectories for branch in forked(episode, rng)]
        groups.append(msgspec.structs.replace(group, trajectories=tuple(branches)))
    return Batch(drawn.version, tuple(groups))


@pytest.mark.parametrize("advantage", [GRPO(), RLOO()], ids=["grpo", "rloo"])
@given(seed=st.integers(0, 10**6))
def test_every_token_has_the_advantage_that_it_has_without_a_fork(advantage: Advantage, seed: int) -> None:
    whole = batch(groups=4, size=4, seed=seed)
    cut = forked_batch(whole, random.Random(seed))
    expected, found = (
        {
            name: np.concatenate([s.columns[name] for group in loss_sequences(each, advantage) for s in group])
            for name in ("advantages", "behavior_logprobs", "policy_versions")
        }
        for each in (whole, cut)
    )
    for name, column in expected.items():
        assert np.array_equal(found[name], column)


@given(seed=st.integers(0, 10**6))
def test_what_is_said_of_episodes_counts_episodes(seed: int) -> None:
    whole = batch(groups=4, size=4, seed=seed)
    cut = forked_batch(whole, random.Random(seed))
    assert batch_metrics(cut, 0.0) == batch_metrics(whole, 0.0)
    for before, after in zip(whole.groups, cut.groups, strict=True):
        assert msgspec.to_builtins(counted(after)) == msgspec.to_builtins(counted(before))
        assert reward_varies(after.problem, after.trajectories) == reward_varies(before.problem, before.trajectories)


def counted(group: TrajectoryGroup) -> tuple[EndedGroups, Population]:
    ended = EndedGroups()
    ended.add(group)
    population = Population()
    population.add(group)
    return ended, population


def test_a_trajectory_file_has_a_row_for_each_branch_of_an_episode(tmp_path: Path) -> None:
    group = forked_batch(batch(groups=1, size=6, seed=3), random.Random(3)).groups[0]
    files = TrajectoryFiles(tmp_path / "trajectories", 0)
    files.write(group_rows(group, TRAINED, 4))
    files.close()
    rows = pq.read_table(tmp_path / "trajectories").to_pylist()
    places = [(number, branch.branch) for number, episode in enumerate(group.episodes) for branch in episode]
    assert [(row["sample"], row["branch"]) for row in rows] == places
    assert len(places) > 6
