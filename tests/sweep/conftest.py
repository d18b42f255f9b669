"""Hold the recipe of the sweeps that tests run: each run takes a second, once its process has started."""

from pathlib import Path

import pytest

RECIPE = """\
name: small
world: virtual
model:
  tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}
data: {task: running_checksum, options: {size: 500}}
reward: {function: "tests.sweep.rewards:held"}
rollout: {problems_per_step: 4, group_size: 4, staleness: 1, max_new_tokens: 24}
train: {steps: 6, minibatches: 2, learning_rate: 1.5e-4}
engine: {slots: 8, stream_interval: 4}
output: {checkpoint_every: 2, keep_checkpoints: 9}
eval: {problems: 4, every: 3}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Write the recipe, whose runs go to a directory beside it."""
    file = tmp_path / "small.yaml"
    file.write_text(RECIPE.replace("output: {", f"output: {{directory: {tmp_path}/runs, "))
    return file
