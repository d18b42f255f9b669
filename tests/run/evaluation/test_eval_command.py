"""`arl eval` as a person types it: a real engine server, a real reward worker, real files, a real kill."""

import json
import os
import re
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from arl.errors import InputError
from arl.run.evaluation.evaluate_model import Request, prepare
from arl.run.evaluation.results import locked, model_sha256
from arl.types import StartingVersions
from tests.forks import ForkedCommand
from tests.run.evaluation.conftest import FLAGS, SUITES, rows_of, run_eval, score_of

COLUMNS = {
    "problem_id", "sample", "prompt", "response", "answer", "extracted", "correct", "parts", "num_tokens", "truncated",
    "error", "policy_version",
}  # fmt: skip


def test_an_evaluation_leaves_a_row_for_every_sample_and_a_table(finished: CompletedProcess[str], place: Path) -> None:
    assert finished.returncode == 0, finished.stderr
    rows = rows_of(place / "whole")
    assert set(rows[0]) == COLUMNS
    assert [(row["prompt"], row["sample"]) for row in rows] == [(f"{i}=", n) for i in range(30) for n in range(4)]
    assert all(row["extracted"] == row["response"][:1] for row in rows)
    assert all(row["parts"] == {"correct": row["correct"], "format": 1.0} for row in rows)
    assert {row["policy_version"] for row in rows} == {0}
    assert (place / "logs" / "whole" / "engine-0.log").exists()
    protocol = "4 x 30 problems, temperature 1, at most 8 tokens; mine:Digits.reward; protocol"
    assert f"mine:Digits: {protocol}" in finished.stdout
    for column in ("model", "avg@4", "pass@2", "pass@4", "maj@4", "tokens", "cut off"):
        assert column in finished.stdout


@pytest.mark.slow
def test_an_evaluation_that_was_killed_in_the_middle_continues_to_equal_scores(
    finished: CompletedProcess[str], place: Path, model: Path
) -> None:
    gate = place / "gate-20"  # of each process that scores
    os.mkfifo(gate)
    arguments = [str(model), *FLAGS, "--output", "killed", "--set", "deadlines.reward=100"]
    command = ForkedCommand(["eval", *arguments], place, os.environ)
    kept = 0
    while kept == 0:
        line = command.stdout.readline()
        assert line, "it ended before it had kept anything"
        if found := re.search(r"mine:Digits: (\d+) of 120 episodes", line):
            kept = int(found[1])
    command.kill()
    command.wait()
    gate.unlink()
    with (place / "killed" / "mine.Digits.jsonl").open("a") as file:
        file.write('{"problem_id": "ha')  # what a kill in the middle of a line leaves
    assert not (place / "killed" / "scores.json").exists()
    again = run_eval(model, *FLAGS, "--output", "killed", "--set", "deadlines.reward=100", cwd=place)
    assert again.returncode == 0, again.stderr
    resumed = re.search(r"mine:Digits: (\d+) of 120 episodes are kept from before", again.stderr)
    assert resumed
    assert kept <= int(resumed[1]) < 120
    assert rows_of(place / "killed") == rows_of(place / "whole")
    assert score_of(place / "killed") == score_of(place / "whole")


def test_a_directory_holds_one_protocol_and_one_model_and_is_written_by_one_command(
    finished: CompletedProcess[str], place: Path, model: Path, tmp_path: Path
) -> None:
    again = run_eval(model, *FLAGS, "--output", "whole", "--json", cwd=place)
    assert again.returncode == 0, again.stderr
    assert "mine:Digits: finished already, in whole" in again.stderr
    assert json.loads(again.stdout) == json.loads((place / "whole" / "scores.json").read_text())
    other = run_eval(model, *FLAGS, "--temperature", "0.5", "--seed", "3", "--output", "whole", cwd=place)
    assert other.returncode == 2
    assert "--output whole: holds another evaluation of mine:Digits" in other.stderr
    assert "temperature: 1.0 → 0.5" in other.stderr
    assert "seed: 0 → 3" in other.stderr
    assert "Give another --output, or remove it" in other.stderr
    changed = Path(shutil.copytree(model, tmp_path / "changed"))
    content = (changed / "model.safetensors").read_bytes()
    (changed / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert model_sha256(changed) != model_sha256(model)
    with locked(tmp_path), pytest.raises(InputError, match="another evaluation writes there"), locked(tmp_path):
        pass


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--suite", "running_checksun"), "--suite 'running_checksun': did you mean running_checksum?"),
        ((), "--suite: required without --recipe"),
        (
            ("--suite", "mine:Digits", "--top-p", "1.5"),
            "suite mine:Digits: eval.top_p = 1.5: must be less than or equal to 1",
        ),
        (("--suite", "mine:Digits"), "--max-new-tokens) 1024, 1028 in all, exceed the model's context of 64: lower"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    place: Path, model: Path, flags: tuple[str, ...], complaint: str
) -> None:
    done = run_eval(model, *flags, "--output", "refused", cwd=place)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (place / "refused").exists()


def test_prompts_with_control_tokens_are_noted(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ended.py").write_text(SUITES.replace("{i}=", "{i}<eos>="))
    monkeypatch.syspath_prepend(tmp_path)
    notes: list[str] = []
    prepare(Request(model=str(model), suites=["ended:Digits"], sampling={"max_new_tokens": 8}), notes.append)
    (note,) = notes
    assert note.startswith("suite ended:Digits: 30 of 30 prompts hold control tokens")
    assert "'<eos>' in a problem of ended:Digits \"0<eos>=\"" in note


def test_a_link_is_followed_at_once_because_the_best_checkpoint_of_a_run_changes(
    place: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(place)
    link = tmp_path / "mine" / "checkpoints" / "best"
    step = shutil.copytree(model, link.with_name("step_20"))
    link.symlink_to("step_20")
    evaluation = prepare(Request(model=str(link), suites=["mine:Digits"], sampling={"max_new_tokens": 8}), print)
    (assignment,) = evaluation.assignments
    assert evaluation.versions == StartingVersions(str(step), 20)
    assert assignment.output.directory.parent == Path("evals") / "mine-step_20"
    assert assignment.output.model["name"] == str(step)


def test_a_run_is_evaluated_at_its_newest_checkpoint_on_what_its_own_recipe_holds_out(
    place: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(place)
    for step in ("step_3", "step_20"):
        shutil.copytree(model, tmp_path / "checkpoints" / step)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    notes: list[str] = []
    evaluation = prepare(Request(model=str(tmp_path)), notes.append)
    assert evaluation.versions.version == 20
    assert [each.suite.name for each in evaluation.assignments] == ["held_out"]
    assert f"its newest checkpoint is {tmp_path}/checkpoints/step_20" in notes[0]


RECIPE = """\
name: small
model:
  tiny: {hidden_size: 32, layers: 1, heads: 2, intermediate_size: 64}
data: {task: "mine:Digits", options: {size: 5}}
rollout: {max_new_tokens: 6}
eval: {problems: 3, samples: 2, temperature: 0.7}
"""


@pytest.mark.slow
def test_with_a_recipe_its_problems_and_settings_are_used_and_tables_keep_protocols_apart(
    finished: CompletedProcess[str], place: Path, model: Path
) -> None:
    (place / "recipe.yaml").write_text(RECIPE)
    done = run_eval(model, "--recipe", "recipe.yaml", "--suite", "held_out,mine:Digits", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "held_out: 2 x 3 problems, temperature 0.7, at most 6 tokens" in done.stdout
    assert "mine:Digits: 2 x 5 problems, temperature 0.7, at most 6 tokens" in done.stdout  # the recipe's options
    directories = sorted(path.name for path in (place / "evals" / "tiny").iterdir())
    assert [name.rpartition("-")[0] for name in directories] == ["held_out", "mine.Digits"]
