"""Write a swimlane as plotly's JSON: a trace of bars for each policy version, lines for waits, steps and swaps."""

from collections.abc import Sequence
from typing import Any

from arl.metrics.trace_spans import RunSpans, Times
from arl.report.episode_bars import EpisodeBar, VersionSegment
from arl.types import TRAINED

LANE_PIXELS = 5
MOST_PIXELS = 640
LEAST_PIXELS = 220
STEP_LANE = -2.5  # above which the bars are
MUTED = "theme:muted"
SHADES = 6  # more would look alike


def swimlane_traces(bars: Sequence[EpisodeBar], spans: RunSpans, window: Times) -> list[dict[str, Any]]:
    """Return the traces, the bars of each version first."""
    versions = sorted({segment.version for bar in bars for segment in bar.segments})
    traces = [_version_trace(bars, version, _shade(version, len(versions))) for version in versions]
    waits = [bar for bar in bars if bar.waits]
    lost = [bar for bar in bars if bar.fate != TRAINED]
    steps = {version: times for version, times in spans.steps.items() if _overlap(times, window)}
    if waits:
        traces.append(_wait_trace(waits))
    if lost:
        traces.append(_lost_trace(lost))
    if steps:
        traces.append(_step_trace(steps))
    return traces


def _shade(version: int, num_versions: int) -> float:
    """Return the place of a version on the scale of colors, which begins again after SHADES versions."""
    period = min(max(num_versions, 2), SHADES)
    return version % period / (period - 1)


def _version_trace(bars: Sequence[EpisodeBar], version: int, shade: float) -> dict[str, Any]:
    own = [(bar, segment) for bar in bars for segment in bar.segments if segment.version == version]
    return {
        "type": "bar",
        "orientation": "h",
        "name": f"v{version}",
        "base": [segment.begin for _, segment in own],
        "x": [segment.end - segment.begin for _, segment in own],
        "y": [bar.lane for bar, _ in own],
        "width": 0.8,
        "marker": {"color": f"scale:{shade:.3f}", "line": {"width": 0}},
        "text": [_text(bar, segment) for bar, segment in own],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }


def _text(bar: EpisodeBar, segment: VersionSegment) -> str:
    tokens = "1 token" if segment.num_tokens == 1 else f"{segment.num_tokens} tokens"
    step = bar.fate if bar.step is None else f"trained in step {bar.step}"
    seconds = bar.end - bar.begin
    return f"group {bar.group}, sample {bar.sample}: {tokens} of version {segment.version}<br>{seconds:.3g} s, {step}"


def _wait_trace(bars: Sequence[EpisodeBar]) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    for bar in bars:
        for begin, end in bar.waits:
            x += [begin, end, None]
            y += [bar.lane, bar.lane, None]
    line = {"color": MUTED, "width": 1}
    return {"type": "scatter", "mode": "lines", "name": "waits", "x": x, "y": y, "line": line, "hoverinfo": "skip"}


def _lost_trace(bars: Sequence[EpisodeBar]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "lost",
        "x": [bar.end for bar in bars],
        "y": [bar.lane for bar in bars],
        "text": [bar.fate for bar in bars],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": "x-thin", "size": 6, "line": {"width": 1.5, "color": "theme:ink"}},
    }


def _step_trace(steps: dict[int, Times]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": "training",
        "base": [begin for begin, _ in steps.values()],
        "x": [end - begin for begin, end in steps.values()],
        "y": [STEP_LANE] * len(steps),
        "width": 3,
        "marker": {"color": MUTED, "line": {"width": 1, "color": "theme:paper"}},
        "text": [f"{version + 1}" for version in steps],
        "textposition": "inside",
        "textangle": 0,
        "insidetextanchor": "middle",
        "insidetextfont": {"color": "theme:paper", "size": 10},
        "hovertemplate": "step %{text}, %{x:.3g} s<extra></extra>",
    }


def swimlane_layout(bars: Sequence[EpisodeBar], spans: RunSpans, window: Times) -> dict[str, Any]:
    """Return axes that show the window, and a vertical line for each swap within it."""
    num_lanes = 1 + max((bar.lane for bar in bars), default=0)
    height = min(max(num_lanes * LANE_PIXELS, LEAST_PIXELS), MOST_PIXELS) + 90
    swaps = [end for _, end in spans.swaps.values() if window[0] <= end <= window[1]]
    return {
        "height": height,
        "barmode": "overlay",
        "hovermode": "closest",
        "xaxis": {"title": {"text": "clock seconds"}, "range": list(window)},
        "yaxis": {
            "range": [num_lanes, STEP_LANE - 2],
            "title": {"text": "episodes"},
            "showgrid": False,
            "zeroline": False,
            "showticklabels": False,
        },
        "shapes": [_swap_line(at) for at in swaps],
    }


def _swap_line(at: float) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "line": {"color": "theme:ink", "width": 1, "dash": "dot"},
        "opacity": 0.5,
    }


def _overlap(one: Times, other: Times) -> bool:
    return one[0] <= other[1] and one[1] >= other[0]
