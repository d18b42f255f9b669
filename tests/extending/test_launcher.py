"""A launcher from outside of arl starts the processes of a real run."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay
from arl.run.train import train
from tests.processes import MARK, left_behind

HERE = "tests.extending.my_launcher"
RECIPE = f"""\
name: nice
launcher: {HERE}:NiceLauncher
model:
  tiny: {{hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}}
data: {{task: running_checksum, options: {{size: 100}}}}
reward: {{function: "{HERE}:priority", environment: {{SIDE: rewards}}}}
rollout: {{problems_per_step: 2, group_size: 2, staleness: 1, max_new_tokens: 16}}
train: {{steps: 2, minibatches: 1, learning_rate: 1.5e-4, threads: 1, environment: {{SIDE: trainer}}}}
engine: {{slots: 4, threads: 1, environment: {{SIDE: engines}}}}
eval: {{problems: 0}}
deadlines: {{startup: 300, step: 300, swap: 300, reward: 60}}
"""


@pytest.mark.slow
def test_a_launcher_of_ones_own_starts_every_process_of_a_real_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "recipe.yaml", [f"output.directory={tmp_path}"])
    summary = train(recipe, ConsoleDisplay(Console(file=io.StringIO())))
    assert summary.steps == 2
    logs = Path(summary.directory) / "logs"
    started = [json.loads(line) for line in (logs / "started.jsonl").read_text().splitlines()]
    assert sorted(process["role"] for process in started) == ["engine-0", "trainer-0"]
    for process in started:
        assert "SIDE" in process["environment"]
        assert "ARL_RUN_KEY" in process["secrets"], "the run's key is never in argv"
    assert "at version 2: Stepped sent" in (logs / "trainer-0.log").read_text()
    assert not left_behind(str(tmp_path))
