"""Runs are read whatever state they are in, and nothing about them is guessed."""

import fcntl
import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from arl.errors import DataError, InputError
from arl.report.runs import load_runs
from tests.report.synthetic_runs import evaluation, step_record, write_metrics, write_recipe, write_run


def test_runs_are_finished_running_or_stopped_and_reading_takes_no_lock(tmp_path: Path) -> None:
    write_run(tmp_path / "a-finished")
    write_run(tmp_path / "b-stopped", is_finished=False)
    living = write_run(tmp_path / "c-running", is_finished=False)
    (tmp_path / "b-stopped" / "run.lock").touch()
    with (living / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        statuses = [run.status for run in load_runs([tmp_path])[0]]
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert statuses == ["finished", "stopped", "running"]


def test_a_run_without_a_step_is_left_out_and_named_and_alone_refused(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    write_recipe(begun, [], seed=0)
    write_run(tmp_path / "done")
    runs, notes = load_runs([tmp_path])
    assert [run.name for run in runs] == [f"{tmp_path.name}/done"]
    assert f"{tmp_path.name}/begun: no step is finished yet (stopped)" in "\n".join(notes)
    with pytest.raises(InputError, match="begun: no step is finished yet"):
        load_runs([begun])


def test_a_run_whose_files_are_torn_is_left_out_and_named(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    (write_run(tmp_path / "bad") / "recipe.yaml").write_text("name: [unclosed")
    with (write_run(tmp_path / "damaged", steps=2) / "metrics.jsonl").open("a") as file:
        file.write("\x00\x00\n")
    (write_run(tmp_path / "half") / "summary.json").write_text('{"sel')
    notes = "\n".join(load_runs([tmp_path])[1])
    assert "half/summary.json: is damaged" in notes
    assert "bad: recipe.yaml, metrics.jsonl, summary.json or status.json cannot be read" in notes
    assert "damaged/metrics.jsonl: cannot be read after 4 lines" in notes


def test_the_date_is_recorded_and_a_torn_manifest_of_a_sweep_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "sweep" / "arm" / "seed-0")
    assert load_runs([run])[0][0].facts["date"] == ""
    noon = datetime(2024, 5, 17, 12).timestamp()
    (run / "status.json").write_text(json.dumps({"time": noon}))
    assert load_runs([run])[0][0].facts["date"] == "2024-05-17"
    (tmp_path / "sweep" / "sweep.json").write_text('{"recipe": {"na')
    with pytest.raises(DataError, match=r"sweep/sweep.json: is damaged .*remove it"):
        load_runs([run])


def test_what_was_not_measured_is_nan_and_never_zero(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_recipe(run, [], seed=0)
    with_nan = step_record(2, 0) | {"loss": float("nan"), "grad_norm": float("inf")}
    write_metrics(run, [step_record(1, 2) | {"loss": 1.0}, with_nan, evaluation(2, {"held_out": 0.5})])
    read = load_runs([run])[0][0]
    assert np.isnan(read.number("loss")).tolist() == [False, True]
    assert np.isnan(read.number("grad_norm")).all()
    assert np.isnan(read.number("never recorded")).all()
    assert np.isnan(read.last("never recorded"))
