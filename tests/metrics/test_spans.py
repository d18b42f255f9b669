"""Spans of a run: on one clock, on lanes that do not overlap, in a file that Perfetto reads."""

import asyncio
import itertools
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from arl import clock
from arl.metrics.spans import Trace, TraceSpan, read_spans, recorded_spans, span

times = st.integers(0, 50)


async def work(name: str, begin: int, seconds: int) -> None:
    await asyncio.sleep(begin)
    with span("engine-0", name):
        await asyncio.sleep(seconds)


@given(st.lists(st.tuples(times, times), max_size=12))
def test_spans_of_one_lane_never_overlap_and_none_is_lost(jobs: list[tuple[int, int]]) -> None:
    collected: list[TraceSpan] = []

    async def main() -> None:
        with recorded_spans() as sink:
            sink.open(collected.append)
            async with asyncio.TaskGroup() as tasks:
                for i, (begin, seconds) in enumerate(jobs):
                    tasks.create_task(work(str(i), begin, seconds))

    clock.run(main, virtual=True)
    found = {one.name: (round(one.begin), round(one.end)) for one in collected}
    assert found == {str(i): (begin, begin + seconds) for i, (begin, seconds) in enumerate(jobs)}
    lanes: dict[str, list[TraceSpan]] = {}
    for one in sorted(collected, key=lambda one: (one.begin, one.end)):
        lanes.setdefault(one.lane, []).append(one)
    for lane in lanes.values():
        assert all(first.end <= second.begin for first, second in itertools.pairwise(lane))


def request(number: int) -> TraceSpan:
    return TraceSpan("engine-0", "0", f"g{number}.0.0", begin=float(number), end=number + 0.5)


def names(run: Path) -> list[str]:
    """The names of the events in the file, which must be whole JSON."""
    return [event["name"] for event in json.loads((run / "trace.json").read_text())]


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
