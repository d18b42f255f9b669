"""A run on several sources trains, measures and replays each of them by its own env, reward and problems."""

import io
import json
from statistics import fmean

import pytest
from rich.console import Console

from arl.metrics.console import ConsoleDisplay
from arl.metrics.names import SOURCE_METRICS
from arl.run.replay.replay_world import replay
from tests.run.virtual.test_virtual import Start

SOURCES = [
    {"task": "running_checksum", "weight": 3, "options": {"size": 60}, "curriculum": 1},
    {"task": "long_tail", "name": "tail", "options": {"size": 40}},
]


SHORT = ("train.steps=8", "eval.every=4", "eval.problems=4", "rollout.max_new_tokens=12")


def test_each_source_has_its_share_its_rewards_and_its_suite_within_the_bound(start: Start) -> None:
    """Steps of four problems, three of them of the first source; the reward of each is its task's."""
    ran = start(f"data={json.dumps(SOURCES)}", "reward.function=null", *SHORT)
    records = ran.records()
    assert max(ran.ages()) <= 2
    shares = [record.get("source/tail/share", 0.0) for record in records]
    assert fmean(shares) == pytest.approx(0.25, abs=0.02)
    assert {record["source/running_checksum/reward"] for record in records} == {0.0}
    assert max(record.get("source/tail/reward", 0.0) for record in records) > 0
    # An untrained model never solves a checksum: each rests after its group, and the tail has no curriculum.
    assert 0.4 < records[-1]["source/running_checksum/skipped"] < 1
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
