"""The trace of a run: one file that Perfetto reads, bounded, and cut back by a resumed run."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.metrics.spans import TraceSpan
from arl.metrics.trace_files import Trace, read_spans


def request(number: int) -> TraceSpan:
    return TraceSpan("engine-0", "0", f"g{number}.0.0", begin=float(number), end=number + 0.5)


def names(run: Path) -> list[str]:
    """The names of the events in the file, which must be whole JSON."""
    return [event["name"] for event in json.loads((run / "trace.json").read_text())]


@given(before=st.integers(0, 60), after=st.integers(0, 60), more=st.integers(0, 60))
def test_a_resumed_run_has_no_span_of_what_was_done_after_its_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, before: int, after: int, more: int
) -> None:
    run = tmp_path_factory.mktemp("run")
    killed = Trace(run)
    for number in range(before):
        killed.add(request(number))
    size = killed.flush()
    for number in range(after):
        killed.add(request(1000 + number))
    killed.flush()
    resumed = Trace(run, size)
    for number in range(more):
        resumed.add(request(2000 + number))
    resumed.close()
    assert names(run) == [f"g{number}.0.0" for number in [*range(before), *range(2000, 2000 + more)]]


def test_steps_and_swaps_of_a_long_run_are_read_again_though_its_requests_are_left_out(tmp_path: Path) -> None:
    trace = Trace(tmp_path, max_bytes=1000)
    for step in range(20):
        for number in range(10):
            trace.add(request(10 * step + number))
        trace.span("trainer", f"step {step}", step, step + 0.5)
        trace.span("engines", f"swap to {step + 1}", step + 0.5, step + 0.75)
    assert trace.flush() < 20_000
    trace.close()
    spans = read_spans(tmp_path)
    assert spans.steps == {step: (step, step + 0.5) for step in range(20)}
    assert spans.swaps == {step + 1: (step + 0.5, step + 0.75) for step in range(20)}
    assert "g199.0.0" not in names(tmp_path)
