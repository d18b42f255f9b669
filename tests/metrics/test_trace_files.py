"""The trace of a run: bounded on disk, readable in parts, and cut back by a resumed run."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.metrics.spans import TraceSpan
from arl.metrics.trace_files import Trace, TracePlace

PART_BYTES = 1000
MOST_PARTS = 3
LARGEST_EVENT = 200


def request(number: int) -> TraceSpan:
    return TraceSpan("engine-0", "0", f"g{number}.0.0", begin=float(number), end=number + 0.5)


def open_trace(run: Path, at: TracePlace | None = None) -> Trace:
    return Trace(run, at, part_bytes=PART_BYTES, most_parts=MOST_PARTS)


def parts(run: Path) -> list[Path]:
    return sorted((run / "spans").iterdir())


def names(file: Path) -> list[str]:
    """The names of the events in a file, which must be whole JSON as Perfetto reads it."""
    events: list[dict[str, Any]] = json.loads(file.read_text())
    return [event["name"] for event in events]


def names_of_requests(run: Path) -> list[str]:
    return [name for part in parts(run) for name in names(part) if name.endswith(".0.0")]


@given(num_steps=st.integers(0, 12), requests=st.integers(0, 40))
def test_however_long_a_run_is_its_parts_are_bounded_and_hold_the_newest_requests_without_a_gap(
    tmp_path_factory: pytest.TempPathFactory, num_steps: int, requests: int
) -> None:
    run = tmp_path_factory.mktemp("run")
    trace = open_trace(run)
    for step in range(num_steps):
        for number in range(requests):
            trace.add(request(step * requests + number))
        trace.span("trainer", f"step {step}", step, step + 1)
    trace.close()
    assert len(parts(run)) <= MOST_PARTS
    assert all(part.stat().st_size <= PART_BYTES for part in parts(run))
    kept = names_of_requests(run)
    made = [f"g{number}.0.0" for number in range(num_steps * requests)]
    assert kept == made[len(made) - len(kept) :]
    all_bytes = sum(part.stat().st_size for part in parts(run))
    assert kept == made or all_bytes > (MOST_PARTS - 1) * (PART_BYTES - LARGEST_EVENT)


def test_steps_and_swaps_of_the_whole_run_stay_and_parts_show_those_of_their_time(tmp_path: Path) -> None:
    trace = open_trace(tmp_path)
    for step in range(20):
        for number in range(10):
            trace.add(request(10 * step + number))
        trace.count("groups arrived", step, groups=step)
        trace.span("trainer", f"step {step}", step, step + 1)
    trace.close()
    assert names(tmp_path / "trace.json") == [f"step {step}" for step in range(20)]
    newest = parts(tmp_path)[-1]
    assert {"step 19", "groups arrived"} <= set(names(newest))
    assert names_of_requests(tmp_path)[-1] == "g199.0.0"


@given(before=st.integers(0, 60), after=st.integers(0, 60), more=st.integers(0, 60))
def test_a_resumed_run_has_no_span_of_what_was_done_after_its_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, before: int, after: int, more: int
) -> None:
    run = tmp_path_factory.mktemp("run")
    killed = open_trace(run)
    for number in range(before):
        killed.add(request(number))
    at = killed.cut()
    for number in range(after):
        killed.add(request(1000 + number))
    killed.cut()
    resumed = open_trace(run, at)
    for number in range(more):
        resumed.add(request(2000 + number))
    resumed.close()
    whole = [part for part in parts(run) if part.read_bytes().endswith(b"]\n")]
    assert whole == parts(run)
    kept = names_of_requests(run)
    expected = [f"g{number}.0.0" for number in [*range(before), *range(2000, 2000 + more)]]
    assert kept == expected[len(expected) - len(kept) :]
    assert len(parts(run)) <= MOST_PARTS


def test_a_run_whose_part_was_removed_since_the_checkpoint_goes_on_with_another_part(tmp_path: Path) -> None:
    trace = open_trace(tmp_path)
    trace.add(request(0))
    at = trace.cut()
    for number in range(100):
        trace.add(request(number))
    trace.close()
    assert not (tmp_path / "spans" / "000001.json").exists()
    resumed = open_trace(tmp_path, at)
    resumed.add(request(7))
    resumed.close()
    assert [part.name for part in parts(tmp_path)] == ["000002.json"]
    assert names_of_requests(tmp_path) == ["g7.0.0"]
