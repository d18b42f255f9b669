"""Evaluation in one process changes nothing of a run: not its schedule, not its weights, not one metric of training."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.run.virtual.test_replay import Record, record
from tests.run.virtual.test_resume import in_forks, write_recipe
from tests.run.virtual.test_virtual import Ran

__all__ = ["record"]
WORLDS = {
    "two replicas, cache kept": "engine.replicas=2 engine.kv_policy=keep virtual.load=0.05",
    "collocated, in segments": "mode=collocated output.checkpoint_every=3",
    "many ties": "virtual.train_step=0.01 virtual.trained_token=0 virtual.snapshot=0 virtual.engine_pass=0.01 "
    "virtual.decode_token=0 virtual.prefill_token=0 virtual.publish=0 virtual.load=0 virtual.reward=0",
}


def records(run: Ran, of_training: bool) -> list[dict[str, Any]]:
    lines = (run.directory / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if ("loss" in record) == of_training]


def training(run: Ran) -> dict[str, Any]:
    """Everything that a run leaves of its training."""
    files = {path: content for path, content in run.bytes().items() if path.startswith(("traj", "trace"))}
    return {
        "files": files,
        "records": records(run, of_training=True),
        "weights": run.summary.weights_sha256,
        "groups": run.summary.groups,
    }


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_with_evaluations_equals_the_run_without_them_to_the_last_bit(record: Record, world: str) -> None:
    settings = WORLDS[world].split()
    without = record(*settings, "name=without")
    evaluated = record(*settings, "name=evaluated", "eval.every=2")
    assert training(evaluated) == training(without)
    assert [r["policy_version"] for r in records(without, of_training=False)] == [0, 6]
    scores = {r["policy_version"]: r["eval/held_out/accuracy"] for r in records(evaluated, of_training=False)}
    assert list(scores) == [0, 2, 4, 6]
    best = max((score, -version) for version, score in scores.items() if version)[1]
    link = evaluated.directory / "checkpoints" / "best"
    assert link.readlink() == Path("step_6" if best == -6 else f"model_{-best}")
    assert sorted(path.name for path in link.parent.glob("model_*")) == [f"model_{-best}"] * (best != -6)


def test_a_run_that_its_tokens_end_measures_its_last_version_on_every_suite(record: Record) -> None:
    run = record("train.tokens=400", "eval.every=50", "eval.suites=[held_out, arithmetic]", "eval.problems=4")
    last = run.summary.steps
    assert last < 6
    scores = [(r["policy_version"], r.keys()) for r in records(run, of_training=False)]
    assert any(version == last and "eval/arithmetic/accuracy" in names for version, names in scores)


@pytest.mark.parametrize("num_kills", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_killed_anywhere_and_resumed_a_run_measures_every_version_once(tmp_path: Path, num_kills: int) -> None:
    """Kills hit steps, evaluations between them, and the writing of scores and of checkpoints/best."""
    recipe = write_recipe(tmp_path, "eval.every=1")
    ((whole,),) = in_forks(recipe, [{"directory": str(tmp_path / "whole"), "kills": []}])
    expected = scores_of(Path(whole["directory"]))
    points = whole["points"]["file"]
    rng = random.Random(0)
    runs = []
    for i in range(num_kills):
        kill = rng.randint(points // 2, points)  # in the second half there is a checkpoint to resume from
        runs.append({"directory": str(tmp_path / str(i)), "kills": [("file", kill)]})
    for killed, resumed in in_forks(recipe, runs):
        assert "killed" in killed
        assert resumed["resumed"]
        assert scores_of(Path(resumed["directory"])) == expected, killed
    assert [version for version, _ in expected["records"]] == list(range(7))


def scores_of(run: Path) -> dict[str, Any]:
    """Everything that a run leaves of its evaluations."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    accuracies = [(r["policy_version"], r["eval/held_out/accuracy"]) for r in records if "loss" not in r]
    return {
        "records": accuracies,
        "files": {file.name: file.read_bytes() for file in (run / "evaluations").iterdir()},
        "best": (run / "checkpoints" / "best").readlink(),
    }
