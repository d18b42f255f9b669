"""A model that transformers 4 made goes through a run, and both versions read what comes back alike.

ARL_TRANSFORMERS_4 names the Python of an environment with transformers 4.57 and torch.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

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
def test_what_a_run_hands_back_is_read_alike_by_both_versions(tmp_path: Path) -> None:
    ask(OLDER, "make", tmp_path)
    rows = [json.dumps({"prompt": f"{i} + {i}?", "answer": str(2 * i)}) for i in range(9)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    directories = []
    for family in any_transformers.CONFIGS:
        source = tmp_path / family
        recipe = tmp_path / f"{family}.yaml"
        recipe.write_text(RECIPE.replace("MODEL", str(source)).replace("DATA", str(tmp_path / "data.jsonl")))
        run = train(load_recipe(recipe, [f"output.directory={tmp_path / 'runs'}"]), silent()).directory
        saved = Path(run, "checkpoints", "step_2")
        exported, _ = export_model(saved, tmp_path / f"exported-{family}", None)
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            assert (exported / name).read_bytes() == (source / name).read_bytes(), (family, name)
        directories += [source, saved, exported]

    by_older, by_ours = (json.loads(ask(python, "describe", *directories)) for python in (OLDER, sys.executable))
    for directory, older, ours in zip(directories, by_older, by_ours, strict=True):
        for row, expected in zip(older.pop("logits"), ours.pop("logits"), strict=True):
            assert row == pytest.approx(expected, abs=1e-4), directory
        assert older == ours, directory
    for first in range(0, len(directories), 3):
        assert by_ours[first] == by_ours[first + 1] == by_ours[first + 2], directories[first]
