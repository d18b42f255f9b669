"""Evaluation in one process changes nothing of a run: not its schedule, not its weights, not one metric of training."""

from pathlib import Path
from typing import Any

import pytest

from tests.run.virtual.test_virtual import Ran, Start

WORLDS = {
    "two replicas, cache kept, in segments": "engine.replicas=2 engine.kv_policy=keep virtual.load=0.05 "
    "output.checkpoint_every=3",
    "collocated, many ties": "mode=collocated virtual.train_step=0.01 virtual.trained_token=0 virtual.snapshot=0 "
    "virtual.engine_pass=0.01 virtual.decode_token=0 virtual.prefill_token=0 virtual.publish=0 virtual.load=0 "
    "virtual.reward=0",
}


def training(run: Ran) -> dict[str, Any]:
    """Everything that a run leaves of its training."""
    files = {path: content for path, content in run.bytes().items() if path.startswith(("traj", "trace"))}
    weights = run.summary.weights_sha256
    return {"files": files, "records": run.records(), "weights": weights, "groups": run.summary.groups}


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_with_evaluations_equals_the_run_without_them_to_the_last_bit(start: Start, world: str) -> None:
    settings = [*WORLDS[world].split(), "eval.problems=6"]
    without = start(*settings, "name=without")
    evaluated = start(*settings, "name=evaluated", "eval.every=2")
    assert training(evaluated) == training(without)
    assert [r["policy_version"] for r in without.records(of_training=False)] == [0, 6]
    scores = {r["policy_version"]: r["eval/held_out/accuracy"] for r in evaluated.records(of_training=False)}
    assert list(scores) == [0, 2, 4, 6]
    best = max((score, -version) for version, score in scores.items() if version)[1]
    link = evaluated.directory / "checkpoints" / "best"
    assert link.readlink() == Path("step_6" if best == -6 else f"model_{-best}")
    assert sorted(path.name for path in link.parent.glob("model_*")) == [f"model_{-best}"] * (best != -6)


def test_a_run_that_its_tokens_end_measures_its_last_version_on_every_suite(start: Start) -> None:
    run = start("train.tokens=400", "eval.every=50", "eval.suites=[held_out, running_checksum]", "eval.problems=4")
    last = run.summary.steps
    assert last < 6
    scores = [(r["policy_version"], r.keys()) for r in run.records(of_training=False)]
    assert any(version == last and "eval/running_checksum/accuracy" in names for version, names in scores)
