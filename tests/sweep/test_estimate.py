"""The time of a sweep is estimated from runs that are finished."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe_file import dump_recipe, load_recipe
from arl.sweep.estimate import TimeEstimate, duration, estimate, recorded_times

NO_TIMES = [b"1", b"[]", b"{}", b'{"run": "a"}', b'{"run": 1, "seconds": 2}', b'{"run": "b", "seconds": "x"}', b"\xff"]
NO_TIMES += [b'{"run": "b", "seconds": %s}' % number for number in (b"-1", b"1e999", b"null", b"NaN", b"true")]
ENDS = {"too long": "n" * 300, "itself": "step_2", "nowhere": "missing"}


def refuse(note: str) -> None:
    """Take no note, because everything can be read."""
    raise AssertionError(note)


def test_the_estimate_is_the_mean_of_the_sweeps_own_runs(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "times.jsonl"
    file.write_text('{"run": "a", "seconds": 10}\n{"run": "b", "seconds": 20}\n{"run": "c", "sec')
    assert recorded_times(tmp_path, refuse) == [10.0, 20.0], "the last line is half written"
    known = estimate(tmp_path, load_recipe(recipe), refuse)
    assert known == TimeEstimate(15.0, "2 finished runs of this sweep")
    assert known.total(num_runs=5, jobs=2) == 45.0


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(NO_TIMES)), max_size=9))
def test_lines_that_hold_no_time_are_left_out_and_said_once(tmp_path_factory: Any, lines: list[bytes]) -> None:
    sweep = tmp_path_factory.mktemp("sweep")
    (sweep / "logs").mkdir()
    wrong = [line.replace(b"\n", b"") for line in lines]
    (sweep / "logs" / "times.jsonl").write_bytes(b"\n".join([*wrong, b'{"run": "a", "seconds": 10}', b""]))
    notes: list[str] = []
    assert recorded_times(sweep, notes.append) == [10.0]
    assert len(notes) == bool(wrong)
    assert all(f"{len(wrong)} of {len(wrong) + 1} lines hold no time of a run" in note for note in notes)


@pytest.mark.parametrize("end", ENDS)
def test_links_in_runs_beside_the_sweep_keep_nobody_from_the_others(recipe: Path, tmp_path: Path, end: str) -> None:
    for name in ("same", "other"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "recipe.yaml").write_text(dump_recipe(load_recipe(recipe)))
        os.utime(run / "recipe.yaml", (1000.0, 1000.0))
        (run / "checkpoints").mkdir()
        (run / "checkpoints" / "step_2").symlink_to(ENDS[end])
    (tmp_path / "runs" / "same" / "summary.json").touch()
    os.utime(tmp_path / "runs" / "same" / "summary.json", (1060.0, 1060.0))
    (tmp_path / "runs" / "other" / "summary.json").symlink_to(ENDS[end])
    known = estimate(tmp_path / "runs" / "study", load_recipe(recipe), refuse)
    assert known == TimeEstimate(60.0, f"the run {tmp_path / 'runs' / 'same'}")


def test_a_run_of_the_same_recipe_beside_the_sweep_serves_as_well(recipe: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    base = load_recipe(recipe)
    for name, overrides in {"other": ["train.steps=7"], "same": ["seed=3", "name=same"]}.items():
        (runs / name).mkdir(parents=True)
        (runs / name / "recipe.yaml").write_text(dump_recipe(load_recipe(recipe, overrides)))
        (runs / name / "summary.json").touch()
        os.utime(runs / name / "recipe.yaml", (1000.0, 1000.0))
        os.utime(runs / name / "summary.json", (1060.0, 1060.0))
    checkpoint = runs / "same" / "checkpoints" / "step_000002"
    checkpoint.mkdir(parents=True)
    os.utime(checkpoint, (1030.0, 1030.0))
    assert estimate(runs / "study", base, refuse) == TimeEstimate(60.0, f"the run {runs / 'same'}")
    os.utime(checkpoint, (990.0, 990.0))
    assert estimate(runs / "study", base, refuse) is None, (
        "its last process has resumed it, and took a part of its time"
    )
    assert estimate(tmp_path / "nowhere" / "study", base, refuse) is None


@pytest.mark.parametrize(("seconds", "said"), [(48.2, "48 s"), (720, "12 min"), (11_100, "3 h 05 min")])
def test_times_are_written_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said
