"""Whole runs in virtual time: nothing is left to chance, and the costs decide the schedule."""

import asyncio
import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.errors import RunError
from arl.metrics.console import ConsoleDisplay
from arl.metrics.names import MEASURED
from arl.metrics.summary import Summary, render
from arl.rollout.env import Session
from arl.run.train import train
from arl.types import Problem, Response, Trajectory
from tests.metrics.every_step import EVERY_STEP

ROOT = Path(__file__).parents[3]
RECIPE = f"""\
name: small
world: virtual
model:
  tiny: {{hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}}
data: {{task: running_checksum, options: {{size: 500}}}}
reward: {{function: "{__name__}:ones"}}
rollout: {{problems_per_step: 4, group_size: 4, staleness: 2, max_new_tokens: 40}}
train: {{steps: 6, minibatches: 2, learning_rate: 1.5e-4}}
engine: {{slots: 8, stream_interval: 4}}
eval: {{problems: 8}}
"""


def ones(problem: Problem, response: Response) -> float:
    """What an untrained model can learn from: it differs within every group."""
    return response.text.count("1") + 0.1 * response.text.count("2")


def picky(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
    """A filter with no view on what it filters."""
    return problem.prompt < "5"  # type: ignore[operator]


def broken(problem: Problem, response: Response) -> float:
    raise ValueError("no opinion")


async def straggling(problem: Problem, session: Session) -> None:
    """One turn, and for some problems then something that takes as long as a thousand steps."""
    await session.generate()
    if int(problem.id, 16) % 4 == 0:
        await asyncio.sleep(1.0)


class Ran:
    """A run that has ended."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.summary = msgspec.json.decode((directory / "summary.json").read_bytes(), type=Summary)

    def fates(self) -> dict[str, int]:
        """Groups by what became of them, from the trajectories themselves."""
        return Counter(row["fate"] for row in self._rows() if row["sample"] == 0)

    def rows(self) -> list[dict[str, Any]]:
        """Of trained trajectories."""
        return [row for row in self._rows() if row["fate"] == "trained"]

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.directory / "trajectories").to_pylist()
        return rows

    def ages(self) -> set[int]:
        """Of every trained token, from the trajectories themselves."""
        return {row["trained_at"] - v for row in self.rows() for v in row["policy_versions"] if v >= 0}

    def schedule(self) -> list[tuple[int, int]]:
        """(step, group) in the order of training."""
        return [(row["trained_at"], row["group_id"]) for row in self.rows() if row["sample"] == 0]

    def records(self, of_training: bool = True) -> list[dict[str, Any]]:
        """Of its steps, or of its evaluations."""
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if ("loss" in record) == of_training]

    def swaps(self) -> list[str]:
        """The names of its swaps, in their order."""
        events = json.loads((self.directory / "trace.json").read_text())
        return [event["name"] for event in events if "swap" in event["name"]]

    def bytes(self) -> dict[str, bytes]:
        """Everything that must repeat."""
        files = [*self.directory.glob("trajectories/*"), *self.directory.glob("checkpoints/*/model.safetensors")]
        files += [self.directory / name for name in ("metrics.jsonl", "trace.json")]
        return {str(file.relative_to(self.directory)): file.read_bytes() for file in files}


def silent() -> ConsoleDisplay:
    return ConsoleDisplay(Console(file=io.StringIO()))


def run_in(directory: Path, *overrides: str) -> Ran:
    """Run RECIPE with other settings, below directory/runs."""
    (directory / "recipe.yaml").write_text(RECIPE)
    recipe = load_recipe(directory / "recipe.yaml", [f"output.directory={directory / 'runs'}", *overrides])
    return Ran(Path(train(recipe, silent()).directory))


class Start(Protocol):
    def __call__(self, *overrides: str) -> Ran: ...


def test_another_process_with_another_hash_seed_computes_the_same_bits(start: Start, tmp_path: Path) -> None:
    """With swaps in mid-generation, and groups that come too late."""
    overrides = ["rollout.late=drop", "rollout.staleness=1", f"rollout.env={__name__}:straggling"]
    overrides += ["virtual.train_step=0.001", "virtual.engine_pass=0.01"]
    here = start(*overrides)
    assert here.summary.trajectories_spanning_versions > 0
    assert here.summary.groups["dropped late, re-queued"] > 0
    assert {**here.fates(), "in flight": here.summary.groups["in flight"]} == here.summary.groups
    env = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)}
    sets = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "arl.cli", "train", "recipe.yaml", *sets]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    assert f"weights    sha256 {here.summary.weights_sha256}" in done.stdout
    assert Ran(tmp_path / "runs" / "small-2").bytes() == here.bytes()


def test_without_interruptions_no_trajectory_spans_versions(start: Start) -> None:
    one = start("sync.interrupt=false")
    assert one.summary.trajectories_spanning_versions == 0
    assert {step["versions/spanning_fraction"] for step in one.records()} == {0}
    assert max(one.ages()) in {1, 2}


def test_collocated_engines_are_idle_while_the_trainer_steps(start: Start) -> None:
    ran = start("mode=collocated", "virtual.train_step=1", "virtual.engine_pass=0.02")
    assert ran.ages() <= {0, 1, 2}
    assert ran.summary.trajectories_spanning_versions > 0
    assert ran.summary.idle_engine + ran.summary.idle_trainer > 0.99  # never both at work


def test_a_publisher_slower_than_the_trainer_writes_the_newest_and_skips_the_others(start: Start) -> None:
    ran = start("virtual.publish=9", "rollout.staleness=3", "train.steps=12", "eval.problems=0")
    assert max(ran.ages()) == 3
    assert ran.summary.training_seconds > 9 * len(ran.swaps())
    assert ran.swaps()[-1] == "swap to 12"
    assert len(ran.swaps()) < 12


def test_every_metric_but_the_wall_clocks_is_there_and_rejects_are_compared_with_what_is_trained(start: Start) -> None:
    ran = start(f"rollout.filter={__name__}:picky")
    rejected = {"audit/length_rejected", "audit/reward_rejected"}
    assert set().union(*ran.records()) == (EVERY_STEP | rejected) - (MEASURED - {"time/train_s"})
    selection = ran.summary.selection
    assert selection.rejected.groups == ran.summary.groups["rejected"] == ran.fates()["rejected"] > 0
    page = render(ran.summary, load_recipe(ran.directory / "recipe.yaml"), [])
    assert f"rejected  {selection.rejected.groups:8d}{selection.rejected.length.mean:14.4g}" in page
    assert "warning" not in page
    assert "virtual s of RL" in page
    assert ran.summary.training_seconds == pytest.approx(ran.records()[-1]["time_s"], abs=0.1)


@pytest.mark.parametrize(
    ("on_error", "complaint"),
    [
        ("drop", r"problems in order of admission failed.*\n?[\s\S]*no opinion"),
        ("zero", r"graded not one episode of the last 16 problems.*\n?[\s\S]*no opinion"),
    ],
)
def test_a_reward_that_grades_nothing_ends_the_run_and_is_no_run_of_zeros(
    start: Start, on_error: str, complaint: str
) -> None:
    with pytest.raises(RunError, match=complaint):
        start(f"reward.function={__name__}:broken", "eval.problems=0", f"reward.on_error={on_error}")
