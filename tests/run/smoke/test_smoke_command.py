"""`arl doctor --smoke`: the whole command, on this CPU, with engines that work and engines that do not."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fake_sglang import make_fake_sglang
from tests.forks import ForkedCommand, arl
from tests.processes import MARK, left_behind

pytestmark = pytest.mark.slow
RECIPE = """\
name: small
model:
  tiny: {hidden_size: 64, layers: 1, heads: 2, intermediate_size: 128}
data: {task: running_checksum, options: {size: 2000}}
rollout: {problems_per_step: 4, group_size: 4, max_new_tokens: 24, temperature: 0.9}
train: {steps: 1, minibatches: 2, dtype: float32}
engine: {dtype: float32, slots: 16}
eval: {problems: 8}
deadlines: {shutdown: 2}
"""
SECONDS = "800"  # tests share their cores; a stage that hangs is not among them


def environment(directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        MARK: str(directory),
        "ARL_CACHE": str(directory / "cache"),
        "SOME_API_KEY": "a secret that nobody may see",
        "ARL_RUN_KEY": "another secret of the shell",
    }


def smoke(directory: Path, *overrides: str) -> tuple[int, dict[str, Any]]:
    """Return exit code and document; every process that the command started is gone by then."""
    (directory / "recipe.yaml").write_text(RECIPE)
    flags = [part for override in overrides for part in ("--set", override)]
    arguments = ["doctor", "recipe.yaml", "--smoke", "--json", "--seconds", SECONDS, *flags]
    done = arl(*arguments, cwd=directory, env=environment(directory))
    assert not left_behind(str(directory))
    assert "Traceback" not in done.stderr.partition("The end of")[0]
    assert "secret" not in done.stdout
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {stage["name"]: stage["verdict"] for stage in document["stages"]}


def test_everything_is_ok_on_this_machine_with_the_embedded_engine(tmp_path: Path) -> None:
    code, document = smoke(tmp_path)
    found = verdicts(document)
    assert code == 0, document["stages"]
    assert document["verdict"] in {"ok", "slow"}
    for name in (
        "environments",
        "collectives",
        "shared memory",
        "engine embedded, float32",
        "trainer, float32",
        "swap by file embedded, float32",
        "swap by broadcast embedded, float32",
        "engine embedded, bfloat16",
        "trainer, bfloat16",
        "logprobs embedded, bfloat16",
    ):
        assert found[name] in {"ok", "slow"}, name
    assert found["swap by ipc embedded, float32"] == "skipped"
    weights = [(row["precision"], row["weights"]) for row in document["logprobs"]]
    assert weights == [
        ("float32", "of the start"),
        ("float32", "after file"),
        ("float32", "after broadcast"),
        ("bfloat16", "of the start"),
    ]
    assert all(row["tokens"] > 1000 and row["rms"] > 0 for row in document["logprobs"])
    swaps = [stage for stage in document["stages"] if stage["name"].startswith("swap by file")]
    assert swaps[0]["measured"]["weights_compared"]
    assert document["versions"]["torch"]
    assert document["machine"]["cores"] >= 1


def test_a_backend_that_forgets_the_temperature_is_wrong(tmp_path: Path) -> None:
    code, document = smoke(tmp_path, "engine.kind=tests.run.smoke.other_temperature:HotBackend")
    assert code == 1
    assert document["verdict"] == "wrong"
    wrong = [row for row in document["logprobs"] if row["verdict"] == "wrong"]
    assert len(wrong) == len(document["logprobs"]) > 0
    assert all("another temperature" in row["reason"] for row in wrong)
    assert any("do not train with engine" in line for line in document["advice"])


def test_an_engine_that_gives_up_its_start_fails_alone(tmp_path: Path) -> None:
    python = make_fake_sglang(tmp_path)
    code, document = smoke(tmp_path, "engine.kind=sglang", f"engine.python={python}", "engine.args=[--fault, refuse]")
    found = verdicts(document)
    assert code == 1
    assert found["engine sglang, float32"] == "failed"
    said = {stage["name"]: stage["said"] for stage in document["stages"]}
    assert "FancyForCausalLM" in said["engine sglang, float32"]
    assert found["trainer, float32"] == "ok"
    assert found["logprobs sglang, float32"] == "skipped"
    assert found["swap by file sglang, float32"] == "skipped"


def test_an_interpreter_that_only_exits_is_missing_and_what_needs_no_engine_runs(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    code, document = smoke(tmp_path, "engine.kind=sglang", f"engine.python={python}")
    found = verdicts(document)
    assert code == 1
    assert found["environments"] == "failed"
    assert found["collectives"] == "ok"
    assert found["small model"] == "failed"
    assert found["engines and trainer"] == "skipped"
    missing = [stage["said"] for stage in document["stages"] if stage["verdict"] == "failed"]
    assert any("pip install sglang" in said for said in missing)


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    arguments = ["doctor", "recipe.yaml", "--smoke", "--seconds", SECONDS]
    command = ForkedCommand(arguments, tmp_path, environment(tmp_path))
    for line in command.stdout:
        if "engine embedded" in line:
            break
    command.send_signal(signal.SIGINT)
    rest = command.stdout.read()
    assert command.wait(timeout=120) == 130, rest
    assert not left_behind(str(tmp_path))


@pytest.mark.sglang
def test_sglang_agrees_with_the_trainer_in_every_precision_and_takes_weights_by_every_transport(
    tmp_path: Path, sglang_python: str
) -> None:
    code, document = smoke(tmp_path, "engine.kind=sglang", f"engine.python={sglang_python}")
    assert code == 0, document["stages"]
    weights = [(row["precision"], row["weights"]) for row in document["logprobs"]]
    assert weights == [
        ("float32", "of the start"),
        ("float32", "after file"),
        ("float32", "after broadcast"),
        ("float32", "after ipc"),
        ("bfloat16", "of the start"),
    ]
