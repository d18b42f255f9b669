"""Turn episodes into bars of a swimlane: segments of one policy version each, in lanes where no two bars overlap."""

import heapq
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from arl.metrics.trace_spans import RunSpans
from arl.types import NOT_SAMPLED


class VersionSegment(Struct, frozen=True):
    """Hold the part of a bar in which one version sampled."""

    version: int
    begin: float
    end: float
    num_tokens: int


class EpisodeBar(Struct, frozen=True, kw_only=True):
    """Hold one episode as a bar: from dispatch to arrival of its group, then until its step began."""

    fate: str
    step: int | None  # that trained it, counted from 1; None: it was lost
    group: int
    sample: int
    segments: list[VersionSegment]
    begin: float
    end: float
    until: float  # when its step began; its arrival if that is unknown
    lane: int = 0

    @property
    def waits(self) -> list[tuple[float, float]]:
        """Return from when until when it waited: for an engine, then for its step."""
        started = self.segments[0].begin if self.segments else self.end
        return [(begin, end) for begin, end in ((self.begin, started), (self.end, self.until)) if begin < end]

    @classmethod
    def from_row(cls, row: dict[str, Any], spans: RunSpans) -> "EpisodeBar":
        """Make the bar of a row of a trajectory file."""
        begin = row["dispatch_time"]
        end = max(begin, row["arrival_time"])
        trained_at = row["trained_at"]
        step = None if trained_at is None else spans.steps.get(trained_at)
        return cls(
            fate=row["fate"],
            step=None if trained_at is None else trained_at + 1,
            group=row["group_id"],
            sample=row["sample"],
            segments=cut_segments(row["policy_versions"], begin, end, spans),
            begin=begin,
            end=end,
            until=end if step is None else max(end, step[0]),
        )


def cut_segments(versions: Sequence[int], begin: float, end: float, spans: RunSpans) -> list[VersionSegment]:
    """Cut the time from `begin` to `end` into one segment for each row of tokens of one version.

    A cut lies where the trace says that engines loaded the next version, and elsewhere at the share of tokens. The
    first segment begins no earlier than its version was loaded: before that, the episode waited for an engine.
    """
    sampled = [version for version in versions if version != NOT_SAMPLED]
    pieces = [(version, len(list(tokens))) for version, tokens in groupby(sampled)]
    if not pieces:
        return []
    segments = []
    at = _swap_between(begin, end, pieces[0][0], spans, begin)
    num_before = 0
    for number, (version, num_tokens) in enumerate(pieces):
        num_before += num_tokens
        cut = end
        if number + 1 < len(pieces):
            share = begin + (end - begin) * num_before / len(sampled)
            cut = _swap_between(at, end, pieces[number + 1][0], spans, share)
        segments.append(VersionSegment(version, at, cut, num_tokens))
        at = cut
    return segments


def _swap_between(begin: float, end: float, version: int, spans: RunSpans, otherwise: float) -> float:
    """Return when the swap to a version ended, if that is between two times."""
    swap = spans.swaps.get(version)
    at = otherwise if swap is None or not begin <= swap[1] <= end else swap[1]
    return min(max(at, begin), end)


def assign_lanes(bars: Iterable[EpisodeBar]) -> list[EpisodeBar]:
    """Put each bar into the lowest lane that is free from its begin until its end."""
    placed = []
    free: list[int] = []  # lanes, the lowest first
    busy: list[tuple[float, int]] = []  # until when, and which lane
    for bar in sorted(bars, key=lambda bar: (bar.begin, bar.group, bar.sample)):
        while busy and busy[0][0] <= bar.begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (bar.until, lane))
        placed.append(replace(bar, lane=lane))
    return placed
