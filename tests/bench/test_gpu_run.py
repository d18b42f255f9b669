"""What only a GPU can settle is run, kept and tabled, whatever one of its commands does."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from arl.bench import commands, gpu_run
from arl.bench.gpu_questions import CHECKS, Check, CheckCommand, read_document, read_run, read_tests
from arl.bench.gpu_run import run_checks, run_gpu_checks, table
from arl.bench.overlap_bench import bench_broadcast
from arl.bench.publication_bench import bench_publication
from arl.errors import InputError
from tests.report.synthetic_runs import write_run

TABLE = Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu" / "README.md"
TESTS = """
import pytest
def test_good(): pass
def test_bad(): assert False
@pytest.mark.skip
def test_left_out(): pass
"""


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *arguments)


def results_of(out: Path, *commands: CheckCommand) -> dict[str, Any]:
    """Run the first check with these commands instead of its own."""
    run_checks([Check(CHECKS[0].name, "a question", commands)], out, note=lambda _: None)
    results: dict[str, Any] = json.loads((out / f"{CHECKS[0].name}.json").read_text())["results"]
    return results


def test_a_command_that_fails_or_says_nothing_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    results = results_of(
        tmp_path,
        CheckCommand("good", python("print('{\"x\": 1}')"), read_document),
        CheckCommand("fails", python("import sys; print('no device', file=sys.stderr); sys.exit(3)"), read_document),
        CheckCommand("silent", python("pass"), read_document),
        CheckCommand("fails late", python("print('{\"x\": 2}'); raise SystemExit(4)"), read_document),
    )
    assert results["good"]["result"] == {"x": 1}
    assert "error" not in results["good"]
    assert "exited with code 3" in results["fails"]["error"]
    assert "no device" in results["fails"]["error"]
    assert "nothing that can be read" in results["silent"]["error"]
    assert results["fails late"]["result"] == {"x": 2}
    assert "code 4" in results["fails late"]["error"]
    assert "failed: fails, silent, fails late" in table(tmp_path)


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "COMMAND_SECONDS", 0.5)
    results = results_of(tmp_path, CheckCommand("hangs", python("import time; time.sleep(600)"), read_document))
    assert "to finish" in results["hangs"]["error"]
    assert results["hangs"]["seconds"] < 60


def test_the_outcomes_of_tests_are_counted_by_name(tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(TESTS)
    pytest_argv = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", "{directory}/junit.xml")
    command = CheckCommand("tests", (*pytest_argv, str(tmp_path / "test_three.py")), read_tests)
    found = results_of(tmp_path / "out", command)["tests"]
    assert found["result"]["tests"] == 3
    assert [name.rpartition(".")[2] for name in found["result"]["failure"]] == ["test_bad"]
    assert [name.rpartition(".")[2] for name in found["result"]["skipped"]] == ["test_left_out"]
    assert "code 1" in found["error"]


def test_of_a_run_the_summary_and_two_steps_are_kept(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text('{"steps": 8}')
    found = read_run(tmp_path, "")
    assert found["summary"] == {"steps": 8}
    assert found["steps"]["first"]["time/step_s"] == found["steps"]["last"]["time/step_s"] == 2.0


def test_a_run_that_ends_before_its_first_step_is_reported_as_what_ended_it(tmp_path: Path) -> None:
    code = """
import pathlib, sys
run = pathlib.Path(sys.argv[1]) / "run"
run.mkdir()
(run / "summary.json").write_text("{}")
(run / "metrics.jsonl").touch()
sys.exit("no memory left")
"""
    results = results_of(tmp_path, CheckCommand("train", python(code, "{directory}"), read_run))
    assert "no memory left" in results["train"]["error"]
    assert "result" not in results["train"]


@pytest.mark.slow
def test_the_trainers_side_of_an_update_is_measured_beside_the_memory_that_it_uses_again() -> None:
    report = bench_publication(versions=4)
    (row,) = report["rows"]
    assert row["buffers"] == "host"
    assert row["warm"]["gather"] > 0
    assert row["warm"]["reserve"] < row["cold"]["reserve"]


@pytest.mark.slow
def test_a_broadcast_and_a_computation_are_measured_alone_and_side_by_side() -> None:
    report = bench_broadcast(repeats=1)
    assert report["broadcast_beside_ms"] > 0
    assert report["products_slowed"] == round(report["products_beside_ms"] / report["products_alone_ms"], 3)


def test_the_page_says_which_checks_were_measured() -> None:
    assert TABLE.read_text() == table(TABLE.parent)


def test_the_help_names_every_check_and_counts_their_commands() -> None:
    text = inspect.getdoc(commands.gpu)
    assert text is not None
    assert all(check.name in text for check in CHECKS)
    assert sum(len(check.commands) for check in CHECKS) == 10  # docs/gpu.md and the help say so


def test_without_a_gpu_or_with_an_unknown_check_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"check 'speed': there is none of that name; choose from tests, kernels"):
        run_gpu_checks(["speed"], tmp_path, print)
    with pytest.raises(InputError, match="no GPU is visible to torch"):
        run_gpu_checks([], tmp_path, print)
    assert not list(tmp_path.iterdir())
