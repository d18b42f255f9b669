"""Weights of a trainer on one node reach the engines on another: real runs over two network namespaces."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forks import ROOT
from tests.sync.namespaces import LEFT, PAIR, WATCHED_MEMORY, Pair, lacking, two_nodes

pytestmark = pytest.mark.slow
SECONDS = 600.0
STEPS = 3
RECIPE = f"""\
name: two-nodes
launcher: tests.sync.namespaces:NamespaceLauncher
model:
  tiny: {{hidden_size: 256, layers: 2, heads: 2, intermediate_size: 512}}
data: {{task: running_checksum, options: {{size: 200}}}}
rollout: {{problems_per_step: 2, group_size: 2, staleness: 0, max_new_tokens: 8}}
train: {{steps: {STEPS}, minibatches: 1, learning_rate: 1.5e-4, dtype: float32}}
reward: {{function: "tests.extending.short_run:number_of_ones"}}
engine: {{slots: 8, stream_interval: 4, replicas: 2, max_restarts: 0}}
sync: {{check: true}}
eval: {{problems: 0}}
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    reason = lacking()
    if reason:
        pytest.skip(reason)
    with two_nodes() as made:
        yield made


class Run:
    """One run of the recipe over two nodes, to its end, with every weight compared after every swap."""

    def __init__(self, directory: Path, pair: Pair, transport: str) -> None:
        (directory / "recipe.yaml").write_text(RECIPE)
        before = pair.received_bytes()
        train = [sys.executable, "-m", "arl.cli", "train", "recipe.yaml", "--set", f"sync.transport={transport}"]
        command = subprocess.run(
            [*WATCHED_MEMORY, *train],
            check=False,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), PAIR: pair.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        self.output = command.stdout
        assert command.returncode == 0, self.output
        self.crossed = pair.received_bytes() - before
        self.directory = directory / "runs" / "two-nodes"
        model = self.directory / "checkpoints" / f"step_{STEPS}" / "model.safetensors"
        self.version_bytes = model.stat().st_size


def test_weights_are_broadcast_from_one_node_to_the_engines_of_another(pair: Pair, tmp_path: Path) -> None:
    run = Run(tmp_path, pair, "auto")
    assert "weights travel by broadcast" in run.output
    sent = STEPS * run.version_bytes
    assert sent < run.crossed < 2.5 * sent  # gloo sends to each of the two engines
    assert run.output.endswith(f"{LEFT}\n")


def test_weights_go_through_the_common_file_system(pair: Pair, tmp_path: Path) -> None:
    run = Run(tmp_path, pair, "file")
    assert "weights travel by file" in run.output
    assert run.crossed < run.version_bytes  # nothing but messages
    assert run.output.endswith(f"{LEFT}\n")
    assert not list(run.directory.glob("arl-weights-*"))
