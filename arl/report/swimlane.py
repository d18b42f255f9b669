"""Draw how episodes lay in time: one bar each, colored by the policy versions that sampled its tokens.

    trajectories/*.parquet ─► the groups of a window ─► lanes ─► bars          trace.json ─► swaps and steps

The window is in the middle of the run, because its begin and its end are unlike the rest. Of each group one episode is
drawn: the files hold dispatch and arrival of a group, which its episodes share.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from arl.errors import DataError
from arl.metrics.trace_spans import RunSpans, read_spans
from arl.report.episode_bars import EpisodeBar, assign_lanes
from arl.report.parts import Figure
from arl.report.swimlane_traces import swimlane_layout, swimlane_traces
from arl.report.trajectory_source import (
    TrajectoryFile,
    TrajectorySource,
    left_out,
    read_rows,
    read_scalars,
    rows_by_file,
    spread,
)

STEPS = 6  # of a window
MOST_BARS = 360
SCALARS = ("fate", "trained_at", "group_id", "sample", "dispatch_version", "dispatch_time", "arrival_time")
COLUMNS = (*SCALARS, "policy_versions")

EXPLANATION = (
    "A line reaches from the admission of a group to the step that trained it, and shows one of its episodes. The "
    "colors of the bar are the policy versions that sampled the episode's tokens; the bar ends when the last episode "
    "of the group does. Where the line is thin, the episode waits: for an engine, or for its step. Dotted lines are "
    "swaps; the boxes on top are the steps of the trainer."
)


class Swimlanes(Struct, frozen=True):
    """Hold one figure for each run that has something to draw, and notes on what could not be read."""

    figures: list[Figure]
    notes: list[str]


class _Place(Struct, frozen=True):
    """Say in which row of which file an episode is."""

    file: TrajectoryFile
    row: int
    trained_at: int | None
    group: int
    sample: int
    begin: float
    end: float


def draw_swimlanes(sources: Sequence[TrajectorySource]) -> Swimlanes:
    """Draw a window of each run; notes are on what was damaged beside what the sources note."""
    figures = []
    notes: list[str] = []
    for number, source in enumerate(sources):
        try:
            figure = _draw(source, f"swimlane-{number}")
        except DataError as error:
            notes.append(left_out(error))
            continue
        if figure is not None:
            figures.append(figure)
    return Swimlanes(figures, notes)


def _draw(source: TrajectorySource, id: str) -> Figure | None:
    places = _places(_middle_files(source.files))
    steps = sorted({place.trained_at for place in places if place.trained_at is not None})
    if not steps:
        return None
    window = steps[len(steps) // 3 :][:STEPS]
    spans = read_spans(source.directory)
    begin, end = _interval(places, window, spans)
    within = [place for place in places if place.end >= begin and place.begin <= end]
    chosen = spread(_one_of_each_group(within), MOST_BARS)
    bars = _bars(chosen, spans)
    return Figure(
        id=id,
        title=source.label,
        caption=_caption(len(bars), within, source.num_rows, window),
        traces=swimlane_traces(bars, spans, (begin, end)),
        layout=swimlane_layout(bars, spans, (begin, end)),
    )


def _middle_files(files: Sequence[TrajectoryFile]) -> list[TrajectoryFile]:
    """Return three files: groups that the first one's steps overlap are trained in the next ones."""
    middle = max(0, (len(files) - 1) // 2)
    return list(files[middle : middle + 3])


def _places(files: Iterable[TrajectoryFile]) -> list[_Place]:
    places = []
    for file in files:
        columns = read_scalars(file, SCALARS).to_pydict()
        for row, trained_at in enumerate(columns["trained_at"]):
            place = _Place(
                file=file,
                row=row,
                trained_at=trained_at,
                group=columns["group_id"][row],
                sample=columns["sample"][row],
                begin=columns["dispatch_time"][row],
                end=columns["arrival_time"][row],
            )
            places.append(place)
    return places


def _interval(places: Sequence[_Place], window: Sequence[int], spans: RunSpans) -> tuple[float, float]:
    """Return when the first step of the window began and the last one ended, seconds."""
    of_window = [place.end for place in places if place.trained_at in window]
    begin = spans.steps.get(window[0], (min(of_window), 0.0))[0]
    end = spans.steps.get(window[-1], (0.0, max(of_window)))[1]
    return begin, max(begin, end)


def _one_of_each_group(places: Iterable[_Place]) -> list[_Place]:
    """Choose another sample of each group, so that no place in a group is preferred."""
    groups: dict[int, list[_Place]] = {}
    for place in places:
        groups.setdefault(place.group, []).append(place)
    chosen = [own[group % len(own)] for group, own in groups.items()]
    return sorted(chosen, key=lambda place: (place.begin, place.group))


def _bars(places: Sequence[_Place], spans: RunSpans) -> list[EpisodeBar]:
    bars = []
    by_file = rows_by_file((place.file, place.row) for place in places)
    for file, rows in by_file.items():
        bars += [EpisodeBar.from_row(row, spans) for row in read_rows(file, rows, COLUMNS)]
    return assign_lanes(bars)


def _caption(num_bars: int, within: Sequence[_Place], num_rows: int, window: Sequence[int]) -> str:
    return (
        f"{num_bars:,} of the {len(within):,} episodes that were under way in steps {window[0] + 1} to "
        f"{window[-1] + 1}, one of a group; the files hold {num_rows:,}."
    )
