"""Weights of a trainer on one node reach the engines on another: real runs over two network namespaces."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from arl.sync.node_copy import SHARED_MEMORY
from tests.forks import ForkedCommand
from tests.sync.namespaces import PAIR, Pair, lacking, two_nodes

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
        memory = set(SHARED_MEMORY.iterdir())
        arguments = ["train", "recipe.yaml", "--set", f"sync.transport={transport}"]
        command = ForkedCommand(arguments, directory, {**os.environ, PAIR: pair.name})
        assert command.stdout is not None
        self.output = command.stdout.read()
        assert command.wait() == 0, self.output
        self.crossed = pair.received_bytes() - before
        self.left = {path for path in SHARED_MEMORY.iterdir() if path.name.startswith("arl-")} - memory
        self.directory = directory / "runs" / "two-nodes"
        model = self.directory / "checkpoints" / f"step_{STEPS}" / "model.safetensors"
        self.version_bytes = model.stat().st_size

    def log(self, role: str) -> str:
        return (self.directory / "logs" / f"{role}.log").read_text()


def test_weights_are_broadcast_from_one_node_to_the_engines_of_another(pair: Pair, tmp_path: Path) -> None:
    run = Run(tmp_path, pair, "auto")
    assert "weights travel by broadcast" in run.output
    sent = STEPS * run.version_bytes
    assert sent < run.crossed < 2.5 * sent  # gloo sends to each of the two engines
    assert not run.left


def test_weights_go_through_the_common_file_system_and_the_memory_of_the_engines_node(
    pair: Pair, tmp_path: Path
) -> None:
    run = Run(tmp_path, pair, "file")
    assert "weights travel by file" in run.output
    assert run.crossed < run.version_bytes  # nothing but messages
    assert not run.left
    assert not list(run.directory.glob("arl-weights-*"))
    assert re.search(r"engine-0", " ".join(os.listdir(run.directory / "logs")))
