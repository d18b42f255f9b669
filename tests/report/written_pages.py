"""Write a page with every kind of part, and trajectories that try to become markup."""

from pathlib import Path
from typing import Any

from arl.report.page import render_page
from arl.report.parts import Figure, Prose, ReportSection, Table
from arl.report.swimlane import draw_swimlanes
from arl.report.viewer import choose_trajectories
from tests.report.written_runs import episode, opened, write_file, write_run

MARKUP = "</script><img src=x onerror=\"document.title='broken'\"><!--<script>document.title='broken'</script>"
HOSTILE = {
    "markup": MARKUP,
    "right to left": "abc \u202e def \u05d0\u05d1\u05d2",
    "control characters": "a\x00b\x07c",
    "emoji": "👩‍🔬🏳️‍🌈",
    "separators": "one\u2028two\u2029three",
    "long": "word " * 20_000,
}


def curve(arm: int, points: int = 60, kind: str = "arm") -> dict[str, Any]:
    """Draw one arm, or one series, as a line."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"staleness={arm}",
        "x": list(range(points)),
        "y": [0.5 + 0.1 * arm + 0.001 * x for x in range(points)],
        "line": {"color": f"{kind}:{arm}"},
    }


def figure(id: str, traces: list[dict[str, Any]]) -> Figure:
    return Figure(id=id, title=f"Figure {id}", caption="What it shows.", traces=traces)


def sections() -> list[ReportSection]:
    bars = [{"type": "bar", "name": name, "x": [1, 2], "y": [3, 4]} for name in ("waits", "trains")]
    heat = {"type": "heatmap", "z": [[0.1, 0.9], [0.9, None]]}
    table = Table(
        id="scores",
        title="Scores",
        caption="With intervals.",
        header=["arm", "score"],
        rows=[["one", "9.5 [9, 10]"], ["two", "−3.1 [−4, −2]"], ["three", "10.2 [9, 11]"], ["four", "–"]],
        numeric=[False, True],
    )
    wide = Table(id="wide", title="Wide", caption="", header=[f"column {i}" for i in range(30)], rows=[["value"] * 30])
    return [
        ReportSection(
            id="comparison",
            title="Comparison",
            items=[
                Prose(id="words", lines=["One arm is 3.1 points above another.", MARKUP]),
                figure("reward", [curve(0), curve(1)]),
                figure("accuracy", [curve(0), curve(1), curve(9)]),
                figure("axis", [curve(0, kind="series"), curve(8, kind="series")]),
                table,
                wide,
            ],
        ),
        ReportSection(id="staleness", title="Staleness", items=[figure("time", bars), figure("ages", [heat])]),
    ]


def write_page(directory: Path) -> Path:
    """Write a page of two runs, one of which has hostile trajectories."""
    plain = write_run(directory / "plain")
    hostile = directory / "hostile"
    rows = [
        episode(
            group=number, trained_at=3, response=text, token_ids=[4] * 12, problem_id=name, answer=text, prompt=text
        )
        for number, (name, text) in enumerate(HOSTILE.items())
    ]
    write_file(hostile, 0, rows)
    sources = [
        opened(plain, "staleness=0", arm=0),
        opened(hostile, MARKUP, arm=1),
    ]
    page = directory / "report.html"
    viewer = choose_trajectories(sources)
    page.write_text(render_page(MARKUP, sections(), draw_swimlanes(sources), viewer), encoding="utf-8")
    return page
