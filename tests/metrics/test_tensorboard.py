"""TensorBoard reads from its files what metrics.jsonl holds, resumed or not."""

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arl.metrics.names import Record
from arl.metrics.tensorboard_tracker import FOLDER, TensorboardTracker
from tests.metrics.tracked_runs import evaluation_record, sample_of, step_record, tracked_run


def logged(directory: Path, records: list[Record], past: list[Record]) -> None:
    tracker = TensorboardTracker(tracked_run(directory, past))
    for record in records:
        tracker.log(record)
    tracker.log_samples(3, [sample_of(3)])
    tracker.close()


def load(directory: Path) -> Any:
    return EventAccumulator(str(directory / FOLDER), size_guidance={"scalars": 0, "histograms": 0}).Reload()


def test_a_resumed_run_takes_the_place_of_what_was_logged_after_its_checkpoint(tmp_path: Path) -> None:
    logged(tmp_path, [step_record(step) for step in range(1, 8)], [])
    past = [step_record(step) for step in range(1, 5)]
    logged(tmp_path, [*(step_record(step, shift=0.25) for step in range(5, 10)), evaluation_record(3, 0.5)], past)
    events = load(tmp_path)
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    expected = [(step, 1 / step + (0.25 if step > 4 else 0.0)) for step in range(1, 10)]
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected])
    assert [(event.step, event.value) for event in events.Scalars("eval/held_out/accuracy")] == [(3, 0.5)]
    counts = events.Histograms("token_age/histogram")[0].histogram_value
    assert (list(counts.bucket), counts.max) == ([0, 80, 15, 5], 2)
