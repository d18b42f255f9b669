"""TensorBoard reads from its files what metrics.jsonl holds, killed and resumed or not."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from arl.errors import RecipeError
from arl.metrics.names import Record
from arl.metrics.tensorboard_tracker import FOLDER, TensorboardTracker
from tests.extending.short_run import ShortRun
from tests.metrics import event_records
from tests.metrics.tracked_runs import evaluation_record, lines_of, sample_of, step_record, tracked_run

KILLED = """
import os, signal, sys
from pathlib import Path
from arl.metrics.tensorboard_tracker import TensorboardTracker
from tests.metrics.tracked_runs import evaluation_record, sample_of, step_record, tracked_run

tracker = TensorboardTracker(tracked_run(Path(sys.argv[1])))
assert "torch" not in sys.modules and "tensorflow" not in sys.modules
for step in range(1, 8):
    tracker.log(step_record(step))
    tracker.log_samples(step, [sample_of(step)])
tracker.log(evaluation_record(3, 0.5))
os.kill(os.getpid(), signal.SIGKILL)
"""


def logged(directory: Path, records: list[Record], past: list[Record]) -> None:
    tracker = TensorboardTracker(tracked_run(directory, past))
    for record in records:
        tracker.log(record)
    tracker.close()


def test_a_training_run_of_several_segments_equals_its_metrics_file(tmp_path: Path) -> None:
    settings = ("train.steps=3", "output.checkpoint_every=1", "eval.problems=4", "eval.every=1")
    summary = ShortRun(tmp_path, "output.trackers=[tensorboard]", "output.samples_every=1", *settings).train()
    directory = Path(summary.directory)
    lines = lines_of(directory / "metrics.jsonl")
    assert {"loss", "token_age/histogram", "eval/held_out/accuracy"} <= set().union(*lines)
    assert event_records.records(directory) == event_records.as_shown(lines)
    assert {step for step, _ in event_records.texts(directory)} == {1, 2, 3}


def test_a_run_that_was_killed_and_resumed_has_no_step_twice(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=120)
    assert killed.returncode == -9
    assert {step for step, _ in event_records.texts(tmp_path)} == set(range(1, 8))
    past = [step_record(step) for step in range(1, 5)]
    again = [*(step_record(step, shift=0.25) for step in range(5, 10)), evaluation_record(3, 0.5, late=9.0)]
    logged(tmp_path, again, past)
    assert event_records.records(tmp_path) == event_records.as_shown(past + again)
    assert {step for step, _ in event_records.texts(tmp_path)} == {1, 2, 3, 4}


def test_half_a_row_that_a_killed_run_has_left_is_left_out(tmp_path: Path) -> None:
    logged(tmp_path, [step_record(1), step_record(2)], [])
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    logged(tmp_path, [step_record(2, shift=0.5)], [step_record(1)])
    assert event_records.records(tmp_path) == event_records.as_shown([step_record(1), step_record(2, shift=0.5)])


def test_numbers_have_the_one_type_that_tensorboard_draws(tmp_path: Path) -> None:
    """It shows no chart of float64, and reports no error."""
    logged(tmp_path, [step_record(1)], [])
    found = event_records.numbers(tmp_path)
    assert {value.dtype for value in found.values() if value.ndim == 0} == {np.dtype(np.float32)}


def test_a_sample_is_shown_as_it_was_written(tmp_path: Path) -> None:
    tracker = TensorboardTracker(tracked_run(tmp_path))
    tracker.log(step_record(3))
    tracker.log_samples(3, [sample_of(3)])
    tracker.close()
    ((place, text),) = event_records.texts(tmp_path).items()
    assert place == (3, "samples/0")
    assert "    2 + 2 =" in text.splitlines()
    assert "    5, said step 3" in text.splitlines()


def test_without_the_package_the_run_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ShortRun(tmp_path, "output.trackers=[tensorboard]")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "tensorboard" else find(name, *of)
    )
    with pytest.raises(RecipeError, match=r"not installed; run `pip install -e '\.\[tensorboard\]'`"):
        run.train()
    assert not (tmp_path / "runs").exists()
