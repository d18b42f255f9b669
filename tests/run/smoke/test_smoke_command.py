"""`arl doctor --smoke`: the whole command, on this CPU, with engines that work and engines that do not."""

import json
import os
import signal
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from typer.testing import CliRunner

from arl import cli
from arl.engine.sglang.installed import find_sglang
from arl.errors import InputError
from arl.run.smoke import smoke_run
from arl.run.smoke.smoke_types import SmokeReport, Verdict
from tests.forks import ForkedCommand, arl, run_to_end
from tests.processes import MARK, left_behind
from tests.run.smoke.doctor_of_more_engines import REFUSAL

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
SMOKE = ("doctor", "--smoke", "--json", "--seconds", SECONDS)


def environment(directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        MARK: str(directory),
        "ARL_CACHE": str(directory / "cache"),
        "SOME_API_KEY": "a secret that nobody may see",
        "ARL_RUN_KEY": "another secret of the shell",
    }


def read(directory: Path, done: CompletedProcess[str]) -> dict[str, Any]:
    """Return the document; every process that the command started is gone by then, and no secret is in it."""
    assert not left_behind(str(directory))
    assert "Traceback" not in done.stderr.partition("The end of")[0]
    assert "secret" not in done.stdout
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def stages_of(document: dict[str, Any], part: str) -> dict[str, str]:
    """Return the verdicts of the stages with `part` in their name."""
    return {stage["name"]: stage["verdict"] for stage in document["stages"] if part in stage["name"]}


def rows_of(document: dict[str, Any], engine: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of the logprob table of one engine, by precision and weights."""
    return {(row["precision"], row["weights"]): row for row in document["logprobs"] if row["engine"] == engine}


def has_sglang() -> bool:
    try:
        return bool(find_sglang(None).version)
    except InputError:
        return False


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the smoke test once, with every engine that there is and two that do not work."""
    directory = tmp_path_factory.mktemp("smoke")
    done = run_to_end("tests.run.smoke.doctor_of_more_engines", SMOKE, directory, environment(directory))
    assert done.returncode == 1
    return read(directory, done)


@pytest.mark.slow
def test_the_machine_is_ok_and_described(report: dict[str, Any]) -> None:
    for name in ("environments", "collectives", "shared memory", "small model", "trainer, float32"):
        assert stages_of(report, name)[name] in {"ok", "slow"}, report["stages"]
    assert report["versions"]["torch"]
    assert report["machine"]["cores"] >= 1


@pytest.mark.slow
def test_the_embedded_engine_is_ok_in_every_precision_and_takes_weights_by_every_transport_that_it_knows(
    report: dict[str, Any],
) -> None:
    found = stages_of(report, "embedded")
    assert found.pop("swap by ipc embedded, float32") == "skipped"
    assert len(found) == 6
    assert set(found.values()) <= {"ok", "slow"}, report["stages"]
    rows = rows_of(report, "embedded")
    assert list(rows) == [
        ("float32", "of the start"),
        ("float32", "after file"),
        ("float32", "after broadcast"),
        ("bfloat16", "of the start"),
    ]
    assert all(row["tokens"] > 1000 and row["rms"] > 0 for row in rows.values())
    (swap,) = [stage for stage in report["stages"] if stage["name"] == "swap by file embedded, float32"]
    assert swap["measured"]["weights_compared"]


@pytest.mark.slow
def test_an_engine_that_forgets_the_temperature_is_wrong_wherever_it_is_compared(report: dict[str, Any]) -> None:
    rows = rows_of(report, "hot")
    assert len(rows) == 4
    for row in rows.values():
        assert row["verdict"] == "wrong"
        assert "another temperature" in row["reason"]
    assert any(line.startswith("do not train with engine hot") for line in report["advice"])


@pytest.mark.slow
def test_an_engine_that_gives_up_its_start_fails_alone_with_what_it_said(report: dict[str, Any]) -> None:
    found = stages_of(report, "refusing")
    assert found["engine refusing, float32"] == "failed"
    assert found["logprobs refusing, float32"] == "skipped"
    assert found["swap by file refusing, float32"] == "skipped"
    (failed,) = [stage for stage in report["stages"] if stage["name"] == "engine refusing, float32"]
    assert REFUSAL in failed["said"]
    assert report["verdict"] == "failed"


@pytest.mark.slow
@pytest.mark.skipif(not has_sglang(), reason="there is no SGLang")
def test_sglang_agrees_with_the_trainer_in_every_precision_and_takes_weights_by_every_transport(
    report: dict[str, Any],
) -> None:
    assert set(stages_of(report, "sglang").values()) <= {"ok", "slow"}, report["stages"]
    rows = rows_of(report, "sglang")
    assert list(rows) == [
        ("float32", "of the start"),
        ("float32", "after file"),
        ("float32", "after broadcast"),
        ("float32", "after ipc"),
        ("bfloat16", "of the start"),
    ]
    assert {row["verdict"] for row in rows.values()} == {"ok"}


@pytest.mark.slow
def test_an_interpreter_that_only_exits_is_missing_and_what_needs_no_engine_runs(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    settings = ("--set", "engine.kind=sglang", "--set", f"engine.python={python}")
    done = arl(*SMOKE, "recipe.yaml", *settings, cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode == 1
    document = read(tmp_path, done)
    found = stages_of(document, "")
    assert found["environments"] == "failed"
    assert found["collectives"] == "ok"
    assert found["small model"] == "failed"
    assert found["engines and trainer"] == "skipped"
    missing = [stage["said"] for stage in document["stages"] if stage["verdict"] == "failed"]
    assert any("pip install sglang" in said for said in missing)


@pytest.mark.slow
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


@pytest.mark.parametrize(("verdict", "code"), [("ok", 0), ("slow", 0), ("skipped", 0), ("wrong", 1), ("failed", 1)])
def test_the_command_fails_where_a_part_is_wrong_or_has_failed(
    verdict: Verdict, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SmokeReport(
        verdict=verdict,
        seconds=1.0,
        recipe="no recipe",
        machine={},
        versions={},
        environment={},
        stages=[],
        logprobs=[],
        advice=[],
    )
    monkeypatch.setattr(smoke_run, "smoke_test", lambda request, display: found)
    done = CliRunner().invoke(cli.app, ["doctor", "--smoke", "--json"])
    assert done.exit_code == code
    assert json.loads(done.stdout)["verdict"] == verdict
