"""A run that is killed and resumed ends as the run that nothing interrupted: same weights, same files, to the bit."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arl.recipe_file import load_recipe

ROOT = Path(__file__).parents[2]
RECIPE = """\
name: small
clock: virtual
model:
  tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}
data: {task: running_checksum, size: 500}
reward: {function: "tests.virtual.test_world:ones"}
rollout: {problems_per_step: 4, group_size: 4, staleness: 2, max_new_tokens: 40}
train: {steps: 6, minibatches: 2}
engine: {slots: 8, stream_interval: 4}
output: {checkpoint_every: 2}
eval: {problems: 4}
"""
WORLDS = {
    "disaggregated": "",
    "two replicas, cache kept": "engine.replicas=2 engine.kv_policy=keep virtual.load=0.05",
    "collocated": "mode=collocated",
    "late groups dropped": "rollout.late=drop rollout.staleness=1 virtual.train_step=0.001 virtual.engine_pass=0.01",
    "some groups rejected": "rollout.filter=tests.virtual.test_resume:odd",
}


def odd(problem: Any, trajectories: Any) -> bool:
    """A filter that rejects every other problem."""
    return int(problem.id, 16) % 2 == 1


def in_forks(recipe: Path, runs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """See tests.virtual.killing."""
    job = json.dumps({"recipe": str(recipe), "runs": runs})
    command = [sys.executable, "-m", "tests.virtual.killing"]
    done = subprocess.run(command, input=job, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def contents(directory: str) -> dict[str, bytes]:
    """Everything that must be equal."""
    run = Path(directory)
    files = [*run.glob("trajectories/*"), run / "metrics.jsonl", run / "trace.json"]
    files += [f for step in (2, 4, 6) for f in (run / f"checkpoints/step_{step}").glob("*.safetensors")]
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def write_recipe(path: Path, overrides: str) -> Path:
    from arl.recipe_file import dump_recipe

    (path / "plain.yaml").write_text(RECIPE)
    (path / "recipe.yaml").write_text(dump_recipe(load_recipe(path / "plain.yaml", overrides.split())))
    return path / "recipe.yaml"


@pytest.mark.parametrize("world", WORLDS)
def test_killed_anywhere_and_resumed_a_run_ends_as_if_nothing_had_happened(tmp_path: Path, world: str) -> None:
    """8 runs in each of 5 worlds; every other one is killed twice."""
    recipe, rng = write_recipe(tmp_path, WORLDS[world]), random.Random(world)
    ((whole,),) = in_forks(recipe, [{"directory": str(tmp_path / "whole"), "kills": []}])
    expected = contents(whole["directory"])
    assert len(expected) > 8

    def somewhere() -> tuple[str, int]:
        kind = rng.choice(["loop", "file"])
        return kind, rng.randint(1, whole["points"][kind])

    runs = [{"directory": str(tmp_path / str(i)), "kills": [somewhere() for _ in range(1 + i % 2)]} for i in range(8)]
    killed, resumed = 0, 0
    for attempts in in_forks(recipe, runs):
        killed += sum("killed" in attempt for attempt in attempts)
        end = attempts[-1]
        resumed += end["resumed"]
        assert end["sha256"] == whole["sha256"], attempts
        assert contents(end["directory"]) == expected, attempts
    assert killed >= 10
    assert resumed >= 3
