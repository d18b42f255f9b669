"""A swimlane shows a window of a run: bars that never overlap, cut where the engines loaded other weights."""

from itertools import groupby, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.metrics.run_files import TRACE_FILE
from arl.metrics.trace_spans import RunSpans, read_spans
from arl.report.episode_bars import EpisodeBar, VersionSegment, assign_lanes, cut_segments
from arl.report.swimlane import MOST_BARS, draw_swimlanes
from tests.report.written_runs import episode, opened, steps, write_file, write_run, write_trace

times = st.floats(0, 100, allow_subnormal=False)


def bar(number: int, begin: float, duration: float, wait: float) -> EpisodeBar:
    end = begin + duration
    return EpisodeBar(
        fate="trained", step=1, group=number, sample=0, segments=[], begin=begin, end=end, until=end + wait
    )


@given(st.lists(st.tuples(times, times, times), max_size=40))
def test_no_two_bars_of_a_lane_overlap_and_no_lane_is_needless(numbers: list[tuple[float, float, float]]) -> None:
    bars = assign_lanes(bar(i, *own) for i, own in enumerate(numbers))
    for _, lane in groupby(sorted(bars, key=lambda own: (own.lane, own.begin, own.until)), key=lambda own: own.lane):
        assert all(one.until <= other.begin for one, other in pairwise(lane))
    for own in bars:
        at_once = [other for other in bars if other.begin <= own.begin <= other.until]
        assert own.lane < len(bars)
        assert own.lane <= len(at_once)


@given(
    versions=st.lists(st.integers(-1, 6), max_size=30),
    begin=times,
    duration=times,
    swaps=st.dictionaries(st.integers(0, 6), st.tuples(times, times)),
)
def test_segments_fill_a_bar_in_the_order_of_its_tokens(
    versions: list[int], begin: float, duration: float, swaps: dict[int, tuple[float, float]]
) -> None:
    end = begin + duration
    segments = cut_segments(versions, begin, end, RunSpans(swaps=swaps))
    sampled = [version for version in versions if version >= 0]
    assert [own.version for own in segments] == [version for version, _ in groupby(sampled)]
    assert sum(own.num_tokens for own in segments) == len(sampled)
    if segments:
        loaded = swaps.get(sampled[0], (0.0, begin))[1]
        assert segments[0].begin == (loaded if begin <= loaded <= end else begin)
        assert segments[-1].end == end
    assert all(one.end == other.begin for one, other in pairwise(segments))
    assert all(own.begin <= own.end for own in segments)


def test_a_bar_is_cut_at_the_swap_and_without_one_at_the_share_of_tokens() -> None:
    swap = RunSpans(swaps={5: (2.0, 3.0)})
    assert cut_segments([4, 5, 5, 5], 0.0, 8.0, swap) == [
        VersionSegment(4, 0.0, 3.0, 1),
        VersionSegment(5, 3.0, 8.0, 3),
    ]
    assert cut_segments([4, 5, 5, 5], 0.0, 8.0, RunSpans()) == [
        VersionSegment(4, 0.0, 2.0, 1),
        VersionSegment(5, 2.0, 8.0, 3),
    ]


def test_a_bar_begins_when_its_first_version_was_loaded_and_waits_until_then() -> None:
    spans = RunSpans(steps={6: (9.0, 10.0)}, swaps={5: (2.0, 3.0)})
    own = episode(trained_at=6, response="12", versions=[5, 5], dispatch_time=1.0, arrival_time=8.0)
    assert EpisodeBar.from_row(own, spans).waits == [(1.0, 3.0), (8.0, 9.0)]


def test_swimlane_shows_one_episode_of_each_group_of_its_window(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 30)
    drawn = draw_swimlanes([opened(run, "an arm")])
    assert drawn.notes == []
    [figure] = drawn.figures
    assert figure.title == "an arm"
    assert "steps 17 to 22" in figure.caption
    bars = [trace for trace in figure.traces if trace["name"].startswith("v")]
    assert {int(trace["name"][1:]) for trace in bars} >= set(range(16, 21))
    window = figure.layout["xaxis"]["range"]
    assert window == [16.0, 21.5]
    assert len(figure.layout["shapes"]) == 5  # one swap after each step but the last
    assert {"training", "waits", "lost"} <= {trace["name"] for trace in figure.traces}


def test_swimlane_is_bounded_whatever_the_number_of_episodes(tmp_path: Path) -> None:
    rows = [episode(group=group, trained_at=group // 1000) for group in range(3000)]
    write_file(tmp_path, 0, rows)
    [figure] = draw_swimlanes([opened(tmp_path, "many")]).figures
    assert sum(len(trace["x"]) for trace in figure.traces if trace["name"].startswith("v")) <= MOST_BARS
    assert "3,000" in figure.caption


@pytest.mark.parametrize("left_over", [0, 10, 1000])
def test_a_torn_file_is_named_and_the_rest_is_drawn(tmp_path: Path, left_over: int) -> None:
    run = write_run(tmp_path / "run", 30)
    torn = run / "trajectories" / "000002.parquet"
    torn.write_bytes(torn.read_bytes()[:left_over])
    source = opened(run)
    assert len(draw_swimlanes([source]).figures) == 1
    assert len(source.notes) == 1
    assert str(torn) in source.notes[0]


def test_a_run_without_files_is_named(tmp_path: Path) -> None:
    source = opened(tmp_path)
    assert draw_swimlanes([source]).figures == []
    assert source.notes == [f"{tmp_path}: no complete trajectory file; none is shown"]


def test_a_trace_that_is_torn_is_read_up_to_the_tear(tmp_path: Path) -> None:
    write_trace(tmp_path, 5)
    path = tmp_path / TRACE_FILE
    whole = read_spans(tmp_path)
    assert set(whole.steps) == set(range(5))
    assert whole.is_whole
    assert whole.swaps[3] == pytest.approx((2.6, 2.7))
    text = path.read_text()
    path.write_text(text[: text.index("swap to 4") + 20])
    torn = read_spans(tmp_path)
    assert set(torn.swaps) == {1, 2, 3}
    assert not torn.is_whole
    path.unlink()
    assert read_spans(tmp_path) == RunSpans({}, {})


def test_a_run_without_a_trace_is_cut_by_tokens(tmp_path: Path) -> None:
    write_file(tmp_path, 0, steps(0, 10))
    [figure] = draw_swimlanes([opened(tmp_path, "no trace")]).figures
    assert figure.layout["shapes"] == []
    assert all(width >= 0 for trace in figure.traces if trace["name"].startswith("v") for width in trace["x"])
