"""The progress of a run is read from its metrics.jsonl while another process writes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.sweep.run_progress import MetricsTail, RunProgress


def lines(steps: int) -> list[str]:
    return [
        json.dumps({"step": step, "reward/trained_mean": step / 10, "tokens/trained_total": 100 * step})
        for step in range(1, steps + 1)
    ]


def follow(file: Path, steps: int, tokens: int | None = None) -> RunProgress:
    return RunProgress(file, steps, suite="held_out", now=0.0, tokens=tokens)


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


def test_a_file_that_was_cut_back_and_has_grown_since_is_read_on_at_the_next_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    old = lines(4)
    file.write_text("\n".join(old) + "\n")
    tail = MetricsTail(file)
    assert len(list(tail.read())) == 4
    longer = old[3].removesuffix("}") + ', "loss": 0.5}'
    file.write_text("\n".join([*old[:3], longer, *lines(6)[4:]]) + "\n")
    assert [record["step"] for record in tail.read()] == [5, 6]


def test_the_time_that_is_left_follows_from_what_this_process_has_trained(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(lines(4)) + "\n")
    progress = follow(file, steps=10)
    assert progress.step == 4
    assert progress.seconds_left(0.0) is None, "an earlier process has trained these steps"
    file.write_text("\n".join(lines(5)) + "\n")
    assert not progress.refresh(now=7.0)
    file.write_text("\n".join(lines(7)) + "\n" + json.dumps({"step": 7, "eval/held_out/accuracy": 0.25}) + "\n")
    assert progress.refresh(now=9.0)
    assert progress.accuracy == 0.25
    assert progress.reward == 0.7
    assert progress.seconds_left(9.0) == pytest.approx(3.0)


def test_what_a_resumed_run_has_kept_of_its_metrics_says_nothing_about_its_time(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(lines(6)) + "\n")
    progress = follow(file, steps=10)
    file.write_text("\n".join(lines(4)) + "\n")
    progress.refresh(now=100.0)
    assert progress.step == 4
    assert progress.seconds_left(100.0) is None, "an earlier process has trained these steps"
    file.write_text("\n".join(lines(6)) + "\n")
    progress.refresh(now=104.0)
    assert progress.seconds_left(104.0) == pytest.approx(8.0)


def test_the_accuracy_is_that_of_one_suite(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    evaluations = [{"step": 1, "eval/held_out/accuracy": 0.25}, {"step": 1, "eval/other/accuracy": 0.75}]
    file.write_text("\n".join(map(json.dumps, evaluations)) + "\n")
    assert follow(file, steps=10).accuracy == 0.25


def test_a_run_that_ends_with_its_tokens_is_done_by_tokens(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(lines(5)) + "\n")
    assert follow(file, steps=1000, tokens=1000).share == 0.5
    assert follow(tmp_path / "none", steps=1000).share == 0.0
