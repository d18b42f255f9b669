"""Exact lag with the real model: what is trained has the age that was asked for, and repeats to the last bit."""

from pathlib import Path

import numpy as np
import pytest

from arl.config.recipe_file import load_recipe
from arl.rollout.exact_lag import load_lags
from tests.run.virtual.test_virtual import Ran, Start

EXACT = "rollout.staleness=null"


def lags_by_step(ran: Ran) -> list[list[int]]:
    """Of every trained group, sorted; all of its tokens have the same age."""
    groups: dict[tuple[int, int], set[int]] = {}
    for row in ran.rows():
        ages = {row["trained_at"] - v for v in row["policy_versions"] if v >= 0}
        groups.setdefault((row["trained_at"], row["group_id"]), set()).update(ages)
    assert all(len(ages) == 1 for ages in groups.values())
    return [sorted(age for (at, _), ages in groups.items() if at == step for age in ages) for step in range(6)]


@pytest.mark.parametrize("speed", ["virtual.train_step=0.001", "virtual.train_step=5 virtual.publish=9"])
def test_every_token_is_exactly_as_old_as_the_lag_whoever_is_faster(start: Start, speed: str) -> None:
    ran = start(EXACT, "rollout.lag=2", *speed.split(), "eval.problems=0")
    assert lags_by_step(ran) == [[lag] * 4 for lag in (0, 1, 2, 2, 2, 2)]
    assert ran.summary.trajectories_spanning_versions == 0
    assert ran.swaps()[:3] == ["swap to 1", "swap to 2", "swap to 3"]  # every version that a step needs is written
    assert ran.swaps()[-1] == "swap to 6"


def test_each_group_has_the_lag_it_drew_from_a_file(start: Start, tmp_path: Path) -> None:
    (tmp_path / "lags.json").write_text('{"0": 0.4, "1": 0.3, "4": 0.3}')
    ran = start(EXACT, f"rollout.lag.dist={tmp_path / 'lags.json'}", "eval.problems=0")
    drawn = load_lags(load_recipe(ran.directory / "recipe.yaml"))
    assert drawn is not None
    assert lags_by_step(ran) == np.sort(drawn, axis=1).tolist()
    assert {0, 1, 4} <= ran.ages()


def test_a_trace_reproduces_the_lags_of_a_recorded_run_at_another_speed(start: Start) -> None:
    recorded = start("rollout.staleness=3", "virtual.train_step=0.2", "eval.problems=0")
    staleness: dict[tuple[int, int], int] = {}
    for row in recorded.rows():
        group = row["trained_at"], row["group_id"]
        oldest = row["trained_at"] - min(v for v in row["policy_versions"] if v >= 0)
        staleness[group] = max(staleness.get(group, 0), oldest)
    ran = start(EXACT, f"rollout.lag.trace={recorded.directory}", "virtual.engine_pass=0.1", "eval.problems=0")
    assert lags_by_step(ran) == [sorted(s for (at, _), s in staleness.items() if at == step) for step in range(6)]
    assert len(set(staleness.values())) > 1
