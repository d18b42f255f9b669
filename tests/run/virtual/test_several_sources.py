"""A run on several sources trains, measures and replays each of them by its own env, reward and problems."""

import io
import json
from statistics import fmean

import pytest
from rich.console import Console

from arl.errors import RecipeError
from arl.metrics.console import ConsoleDisplay
from arl.metrics.names import SOURCE_METRICS
from arl.run.replay.replay_world import replay
from arl.tasks.running_checksum import RunningChecksum
from tests.run.virtual.test_virtual import Start


class Letters(RunningChecksum):
    characters = "ab"


SOURCES = [
    {"task": "running_checksum", "weight": 3, "options": {"size": 60}, "curriculum": {"epochs": 1}},
    {"task": "long_tail", "name": "tail", "options": {"size": 40}},
]


SHORT = ("train.steps=8", "eval.every=4", "eval.problems=4", "rollout.max_new_tokens=12")


def test_each_source_has_its_share_its_rewards_its_ledger_and_its_suite_within_the_bound(start: Start) -> None:
    """Steps of four problems, three of them of the first source; the reward of each is its task's."""
    ran = start(f"data={json.dumps(SOURCES)}", "reward.function=null", *SHORT)
    records = ran.records()
    assert max(ran.ages()) <= 2
    assert sum(record["source/tail/share"] for record in records) / len(records) == pytest.approx(0.25, abs=0.02)
    assert {record["source/running_checksum/reward"] for record in records} == {0.0}
    assert max(record.get("source/tail/reward", 0.0) for record in records) > 0
    last = records[-1]
    for source in ("running_checksum", "tail"):
        own = [row for row in ran.rows() if row["source"] == source]
        assert last[f"source/{source}/groups_trained"] == len(own) / 4
        assert last[f"source/{source}/tokens_trained"] == sum(v >= 0 for row in own for v in row["policy_versions"])
    # An untrained model never solves a checksum: each rests after its group, and the tail has no curriculum.
    assert 0.4 < last["source/running_checksum/skipped"] < 1
    logged = {name.rpartition("/")[2] for record in records for name in record if name.startswith("source/")}
    assert logged == set(SOURCE_METRICS)
    by_version: dict[int, dict[str, float]] = {}
    for record in ran.records(of_training=False):
        by_version.setdefault(record["policy_version"], {}).update(record)
    assert set(by_version) == {0, 4, 8}
    for found in by_version.values():
        suites = [found[f"eval/held_out/{source}/accuracy"] for source in ("running_checksum", "tail")]
        assert found["eval/held_out/accuracy"] == fmean(suites)
    summary, _ = replay(ran.directory, [], ConsoleDisplay(Console(file=io.StringIO())))
    assert summary.weights_sha256 == ran.summary.weights_sha256


def test_tiny_models_need_one_vocabulary_for_all_sources(start: Start) -> None:
    sources = [{"task": "running_checksum"}, {"task": f"{__name__}:Letters"}]
    with pytest.raises(RecipeError, match=r"its sources must have one vocabulary .*, .*Letters has 'ab'.; mix tasks"):
        start(f"data={json.dumps(sources)}")
