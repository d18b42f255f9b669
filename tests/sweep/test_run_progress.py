"""The progress of a run is read from its metrics.jsonl while another process writes it."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from arl.sweep.run_progress import MetricsTail, RunProgress


def lines(steps: int) -> list[str]:
    return [
        json.dumps({"step": step, "reward/trained_mean": step / 10, "tokens/trained_total": 100 * step})
        for step in range(1, steps + 1)
    ]


def follow(file: Path, steps: int) -> RunProgress:
    return RunProgress(file, steps, suite="held_out")


@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_every_record_is_read_once_wherever_the_writer_was_interrupted(tmp_path_factory: Any, cuts: list[int]) -> None:
    file = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    text = "\n".join(lines(6)) + "\n"
    tail = MetricsTail(file)
    steps = [record["step"] for record in tail.read()]
    for end in [*sorted(cuts), len(text)]:
        file.write_text(text[:end])
        steps += [record["step"] for record in tail.read()]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_file_that_a_resumed_run_has_cut_back_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(lines(4)) + "\n")
    tail = MetricsTail(file)
    assert len(list(tail.read())) == 4
    file.write_text("\n".join(lines(2)) + "\n")
    assert [record["step"] for record in tail.read()] == [1, 2]


def test_step_reward_and_accuracy_are_the_newest(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    progress = follow(file, steps=10)
    assert (progress.step, progress.reward, progress.accuracy) == (0, None, None)
    file.write_text("\n".join(lines(7)) + "\n" + json.dumps({"step": 7, "eval/held_out/accuracy": 0.25}) + "\n")
    assert progress.refresh()
    assert (progress.step, progress.reward, progress.accuracy) == (7, 0.7, 0.25)


def test_the_accuracy_is_that_of_one_suite(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    evaluations = [{"step": 1, "eval/held_out/accuracy": 0.25}, {"step": 1, "eval/other/accuracy": 0.75}]
    file.write_text("\n".join(map(json.dumps, evaluations)) + "\n")
    assert follow(file, steps=10).accuracy == 0.25
