"""Run engines of two workers each on a CPU: engine.tensor_parallel, from the recipe to the weights."""

import re
from pathlib import Path

import psutil
import pytest

from tests.processes import survivors
from tests.run.test_train import Command

RECIPE = """\
name: small
model:
  tiny: {hidden_size: 32, layers: 2, heads: 4, intermediate_size: 64}
data: {task: running_checksum, options: {size: 2000}}
rollout: {problems_per_step: 4, group_size: 4, staleness: 0, max_new_tokens: 24}
objective: {kind: decoupled_ppo}
reward: {function: "mine:length"}
train: {steps: 3, minibatches: 1, learning_rate: 1e-2, dtype: float32}
engine: {kind: sglang, replicas: 2, tensor_parallel: 2, dtype: float32, slots: 16, stream_interval: 4}
sync: {transport: broadcast}
eval: {problems: 16}
deadlines: {startup: 600, reward: 100}
"""


@pytest.mark.long
@pytest.mark.sglang
def test_a_run_whose_engines_have_two_workers_each_samples_with_the_weights_it_has_just_trained(
    sglang_python: str, tmp_path: Path
) -> None:
    """Rank 0 and four workers are one group. Other weights would give other logprobs than the trainer computes."""
    command = Command(tmp_path, f"engine.python={sglang_python}", recipe=RECIPE)
    try:
        command.read_until("step    1")
        tree = psutil.Process(command.process.pid).children(recursive=True)
        assert command.end() == 0, command.output
    finally:
        command.clear()
    steps = [record for record in command.metrics() if "loss" in record]
    assert [record["policy_version"] for record in steps] == [1, 2, 3]
    assert all(record["grad_norm"] > 0.1 for record in steps), "else every version would be alike"
    assert max(record["kl/behavior_proximal"] for record in steps) < 1e-9
    logs = [(command.run / "logs" / f"engine-{replica}.log").read_text() for replica in range(2)]
    members = [re.findall(r"rank=(\d), world_size=5", log) for log in logs]
    assert list(map(sorted, members)) == [["1", "2"], ["3", "4"]]
    assert not survivors(tree)
