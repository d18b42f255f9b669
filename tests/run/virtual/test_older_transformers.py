"""A model that transformers 4 made goes through a run, and both versions read what comes back alike.

ARL_TRANSFORMERS_4 names the Python of an environment with transformers 4.57 and torch.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arl.config.recipe_file import load_recipe
from arl.models.export import export_model
from arl.run.train import train
from tests.run.virtual import any_transformers
from tests.run.virtual.test_virtual import silent

OLDER = os.environ.get("ARL_TRANSFORMERS_4", "")
RECIPE = """\
name: older
world: virtual
model: {path: MODEL}
data: {path: DATA}
reward: {function: "tests.run.virtual.test_virtual:ones"}
rollout: {problems_per_step: 2, group_size: 2, max_new_tokens: 8}
train: {steps: 2, minibatches: 1, learning_rate: 1.0e-3}
eval: {problems: 0}
"""


def ask(python: str, *arguments: object) -> str:
    command = [python, any_transformers.__file__, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(not OLDER, reason="ARL_TRANSFORMERS_4 names no Python with transformers 4")
@pytest.mark.parametrize("family", any_transformers.CONFIGS)
def test_what_a_run_hands_back_is_read_alike_by_both_versions(family: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    ask(OLDER, "make", family, source)
    rows = [json.dumps({"prompt": f"{i} + {i}?", "answer": str(2 * i)}) for i in range(9)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    recipe = RECIPE.replace("MODEL", str(source)).replace("DATA", str(tmp_path / "data.jsonl"))
    (tmp_path / "recipe.yaml").write_text(recipe)
    loaded = load_recipe(tmp_path / "recipe.yaml", [f"output.directory={tmp_path}"])
    saved = Path(train(loaded, silent()).directory, "checkpoints", "step_2")
    exported, _ = export_model(saved, tmp_path / "exported", None)

    found: list[dict[str, Any]] = []
    for directory in (source, saved, exported):
        older, ours = (json.loads(ask(python, "describe", directory)) for python in (OLDER, sys.executable))
        for row, expected in zip(older.pop("logits"), ours.pop("logits"), strict=True):
            assert row == pytest.approx(expected, abs=1e-4)
        assert older == ours
        found.append(ours)
    assert found[0] == found[1] == found[2]
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (exported / name).read_bytes() == (source / name).read_bytes()
