"""Whole runs of an agent: by the recipe, and as a program."""

import io
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.errors import RecipeError
from arl.metrics.console import ConsoleDisplay
from arl.run.preflight import preflight
from arl.run.train import train
from tests.test_architecture import ROOT

SMALL = (
    "warmup=false",
    "model.tiny={hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}",
    "rollout.problems_per_step=4",
    "rollout.group_size=2",
    "rollout.staleness=1",
    "train.steps=2",
    "eval.problems=0",
)
COUNTING = """\
import json, sys
from openai import BadRequestError, OpenAI

messages = [{"role": "user", "content": json.load(sys.stdin)["prompt"]}]
client = OpenAI()
tokens = 0
for limit in (5, 5, 5):
    answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=limit)
    tokens += answer.usage.completion_tokens
    messages += [answer.choices[0].message, {"role": "user", "content": "?"}]
print(json.dumps({"reward": tokens}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_program", [False, True])
def test_an_agent_trains_by_one_recipe_and_the_tokens_trained_are_those_that_it_was_given(
    tmp_path: Path, is_program: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    program = tmp_path / "agent.py"
    program.write_text(COUNTING)
    driven = ["rollout.env=null", f"rollout.agent={sys.executable} {program}"] if is_program else []
    recipe = load_recipe(ROOT / "recipes" / "agent.yaml", [f"output.directory={tmp_path}", *SMALL, *driven])
    summary = train(recipe, ConsoleDisplay(Console(file=io.StringIO())))
    rows = pq.read_table(Path(summary.directory) / "trajectories").to_pylist()
    trained = [row for row in rows if row["fate"] == "trained"]
    assert len(trained) >= 2 * 4 * 2
    assert sum(sum(row["loss_mask"]) for row in trained) == summary.tokens_trained
    if is_program:
        assert [sum(row["loss_mask"]) for row in trained] == [row["reward"] for row in trained]


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("rollout.agent=no-such-program agent.py", "there is no program no-such-program"),
        ("rollout.agent=python 'agent.py", "is no command (No closing quotation)"),
    ],
)
def test_a_command_that_cannot_be_started_is_refused(tmp_path: Path, override: str, reason: str) -> None:
    recipe = load_recipe(
        ROOT / "recipes" / "quickstart.yaml", [f"output.directory={tmp_path}", "warmup=false", override]
    )
    with pytest.raises(RecipeError) as raised:
        preflight(recipe)
    assert reason in str(raised.value)


def test_an_agent_beside_an_env_or_tools_and_one_in_virtual_time_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"rollout\.env; give one"):
        load_recipe(ROOT / "recipes" / "quickstart.yaml", ["rollout.agent=python a.py", "rollout.env=a:b"])
    with pytest.raises(RecipeError, match=r"leave out rollout\.tools"):
        load_recipe(ROOT / "recipes" / "quickstart.yaml", ["rollout.agent=python a.py", "rollout.tools=[python]"])
    with pytest.raises(RecipeError, match="has no sockets"):
        load_recipe(ROOT / "recipes" / "quickstart-virtual.yaml", ["rollout.agent=python a.py"])
