"""The progress of a run is read from its metrics.jsonl while another process writes it."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from arl.sweep.sweep_display import RunProgress


def lines(steps: int) -> list[str]:
    return [
        json.dumps({"step": step, "reward/trained_mean": step / 10, "tokens/trained": 100})
        for step in range(1, steps + 1)
    ]


def follow(file: Path, steps: int) -> RunProgress:
    return RunProgress(file, steps, suite="held_out")


@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_a_run_is_followed_wherever_its_writer_was_interrupted(tmp_path_factory: Any, cuts: list[int]) -> None:
    file = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    text = "\n".join(lines(6)) + "\n"
    progress = follow(file, steps=6)
    for end in [*sorted(cuts), len(text)]:
        file.write_text(text[:end])
        progress.refresh()
        assert progress.step == text[:end].count("\n")


def test_a_file_that_a_resumed_run_has_cut_back_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("\n".join(lines(4)) + "\n")
    progress = follow(file, steps=10)
    file.write_text("\n".join(lines(2)) + "\n")
    progress.refresh()
    assert progress.step == 2


def test_reward_and_accuracy_are_the_newest_and_the_accuracy_is_that_of_one_suite(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    progress = follow(file, steps=10)
    assert (progress.step, progress.reward, progress.accuracy) == (0, None, None)
    evaluations = [{"step": 7, "eval/held_out/accuracy": 0.25}, {"step": 7, "eval/other/accuracy": 0.75}]
    file.write_text("\n".join([*lines(7), *map(json.dumps, evaluations)]) + "\n")
    assert progress.refresh()
    assert (progress.step, progress.reward, progress.accuracy) == (7, 0.7, 0.25)
