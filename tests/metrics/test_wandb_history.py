"""Read back what wandb itself has written offline: it equals metrics.jsonl, killed and resumed or not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import wandb

from arl.metrics.names import Record
from arl.metrics.wandb_files import ID_FILE
from arl.metrics.wandb_tracker import MAX_BINS, WandbTracker
from tests.extending.short_run import ShortRun
from tests.metrics import wandb_file
from tests.metrics.tracked_runs import evaluation_record, lines_of, sample_of, step_record, tracked_run

KILLED = """
import os, signal, sys
from pathlib import Path
import wandb
from arl.metrics.wandb_tracker import WandbTracker
from tests.metrics.tracked_runs import evaluation_record, sample_of, step_record, tracked_run

tracker = WandbTracker(tracked_run(Path(sys.argv[1]), wandb="offline"))
for step in range(1, 8):
    tracker.log(step_record(step))
    tracker.log_samples(step, [sample_of(step)])
tracker.log(evaluation_record(3, 0.5))
os.kill(os.getpid(), signal.SIGKILL)
"""
CUT = 4  # step of the checkpoint that the killed run is resumed from


def logged(directory: Path, records: list[Record], past: list[Record] = []) -> None:  # noqa: B006
    tracker = WandbTracker(tracked_run(directory, past, wandb="offline", target={"accuracy": 0.6}))
    for record in records:
        tracker.log(record)
    tracker.close()
    wandb.teardown()  # waits until wandb's own process has written its file


def test_a_training_run_equals_its_metrics_file_record_by_record(tmp_path: Path) -> None:
    summary = ShortRun(tmp_path, "output.wandb=offline", "eval.problems=4", "eval.every=1").train()
    wandb.teardown()
    directory = Path(summary.directory)
    records = lines_of(directory / "metrics.jsonl")
    assert {"loss", "token_age/histogram", "tokens/trained_total"} <= set().union(*records)
    assert any("eval/held_out/accuracy" in record for record in records)
    assert wandb_file.logged_records(directory) == records


def test_a_run_of_several_segments_is_one_run_at_wandb(tmp_path: Path) -> None:
    """In virtual time a tracker is made anew after each checkpoint, within the same second."""
    settings = ("output.wandb=offline", "output.checkpoint_every=1", "train.steps=3", "output.samples_every=1")
    summary = ShortRun(tmp_path, *settings).train()
    wandb.teardown()
    directory = Path(summary.directory)
    assert wandb_file.logged_records(directory) == lines_of(directory / "metrics.jsonl")
    assert [row["step"] for row in wandb_file.history(directory) if "samples.path" in row] == [1, 2, 3]


def test_a_run_that_was_killed_and_resumed_is_one_run_without_a_row_twice(tmp_path: Path) -> None:
    alone = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}  # its own wandb service
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=alone, check=False, timeout=120)
    assert killed.returncode == -9
    first = (tmp_path / "wandb" / ID_FILE).read_text()  # wandb itself may have written nothing yet
    past = [step_record(step) for step in range(1, CUT + 1)]
    again = [step_record(step, shift=0.25) for step in range(CUT + 1, 10)]
    tracker = WandbTracker(tracked_run(tmp_path, past, wandb="offline"))
    for record in again:
        tracker.log(record)
    tracker.log_samples(5, [sample_of(5)])
    tracker.log(evaluation_record(3, 0.5, late=9.0))
    tracker.close()
    wandb.teardown()
    assert wandb_file.logged_records(tmp_path) == [*past, *again, evaluation_record(3, 0.5, late=9.0)]
    assert wandb_file.run_record(tmp_path).run_id == first
    steps = [row["step"] for row in wandb_file.history(tmp_path) if "samples.path" in row]
    assert set(steps) <= {1, 2, 3, 4, 5}
    assert len(set(steps)) == len(steps)
    assert 5 in steps
    (summary,) = [wandb_file.summary(tmp_path)]
    assert (summary["final/step"], summary["final/groups_trained"]) == (9, 36)


def test_the_summary_holds_evaluations_and_the_cost_of_the_target(tmp_path: Path) -> None:
    records = [evaluation_record(0, 0.1), step_record(1), step_record(2), evaluation_record(1, 0.7)]
    logged(tmp_path, [*records, evaluation_record(2, 0.65)])
    found = wandb_file.summary(tmp_path)
    assert (found["best/held_out/accuracy"], found["best/held_out/step"]) == (0.7, 1)
    assert (found["final/held_out/accuracy"], found["final/held_out/step"]) == (0.65, 2)
    assert (found["target/step"], found["target/tokens"], found["target/time_s"]) == (1, 100, 2.0)


def test_every_row_holds_the_three_axes_and_none_is_hidden(tmp_path: Path) -> None:
    logged(tmp_path, [evaluation_record(0, 0.1), step_record(1), step_record(2), evaluation_record(1, 0.7)])
    places = [(row["axis/step"], row["axis/tokens"], row["axis/time_s"]) for row in wandb_file.history(tmp_path)]
    assert places == [(0, 0, 0), (1, 100, 2), (2, 200, 4), (1, 100, 2)]
    defined = [record.metric for record in wandb_file.records(tmp_path) if record.WhichOneof("record_type") == "metric"]
    assert {"axis/step", "axis/tokens", "axis/time_s"} <= {metric.name for metric in defined}
    assert not any(metric.options.hidden for metric in defined)


def test_ages_beyond_what_a_histogram_may_hold_are_counted_in_its_last_bin(tmp_path: Path) -> None:
    counts = [1] * (MAX_BINS + 88)
    logged(tmp_path, [step_record(1) | {"queue_age/histogram": counts}])
    (row,) = wandb_file.logged_records(tmp_path)
    assert row["queue_age/histogram"] == [1] * (MAX_BINS - 1) + [89]


def test_no_secret_is_in_what_wandb_writes(tmp_path: Path) -> None:
    """The command line holds it, too, as with `--set engine.environment=…`."""
    script = KILLED.replace('wandb="offline"', "wandb='offline'").replace(
        "tracker = WandbTracker(",
        "import msgspec\nfrom arl.metrics.run_labels import redacted\n"
        "config = {'engine': {'kind': 'embedded', 'environment': {'PROXY': sys.argv[2]}}}\n"
        "run = tracked_run(Path(sys.argv[1]), wandb='offline')\n"
        "run = msgspec.structs.replace(run, config=redacted(run.config | config))\n"
        "tracker = WandbTracker(run) if sys.argv[2] else WandbTracker(",
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path), "hunter2"], check=False, timeout=120)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.suffix == ".wandb" for file in files)
    assert not [file for file in files if b"hunter2" in file.read_bytes()]


def test_labels_are_in_what_wandb_writes(tmp_path: Path) -> None:
    tracker = WandbTracker(tracked_run(tmp_path, wandb="offline", wandb_group="study", wandb_tags=["mine"]))
    tracker.close()
    wandb.teardown()
    run = wandb_file.run_record(tmp_path)
    assert (run.run_group, run.job_type) == ("study", "train")
    assert list(run.tags) == ["decoupled_ppo", "staleness=4", "disaggregated", "wall", "embedded", "mine"]
    config = {item.key: item.value_json for item in run.config.update}
    assert '"staleness":"4"' in config["compare"].replace(" ", "")


@pytest.mark.parametrize("damage", ["{", "{}", '{"columns": ["step"], "data": []}'])
def test_a_table_that_a_killed_run_left_half_written_is_left_out(tmp_path: Path, damage: str) -> None:
    logged(tmp_path, [step_record(1)])
    (part,) = tmp_path.glob("wandb/offline-run-*")
    tables = part / "files" / "media" / "table"
    tables.mkdir(parents=True)
    (tables / "samples_1_abc.table.json").write_text(damage)
    logged(tmp_path, [step_record(2)], past=[step_record(1)])
    assert wandb_file.logged_records(tmp_path) == [step_record(1), step_record(2)]
