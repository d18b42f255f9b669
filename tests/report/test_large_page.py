"""A report of 36 runs of 1,000 steps and 100,000 trajectories stays small, and opens without an error.

It prints what that takes: `pytest -m slow -s tests/report/test_large_page.py`.
"""

import time
from pathlib import Path

import pytest

from arl.report.page import render_page
from arl.report.parts import ReportSection
from arl.report.swimlane import draw_swimlanes
from arl.report.viewer import choose_trajectories
from tests.report.chromium import Browser
from tests.report.written_pages import curve, figure
from tests.report.written_runs import episode, opened, write_file, write_tokenizer, write_trace

RUNS = 36
ARMS = 12
STEPS = 1_000
EPISODES = 100_000
FIGURES = 60
POINTS = 300  # of a curve, to which the data side thins it
MOST_BYTES = 15_000_000


def write_large_run(run: Path) -> Path:
    """Write a run with its part of the episodes, in files of twenty steps."""
    a_step = EPISODES // RUNS // STEPS + 1
    for number in range(STEPS // 20):
        rows = []
        for step in range(number * 20, number * 20 + 20):
            for place in range(a_step):
                row = episode(
                    group=step * a_step + place,
                    trained_at=step,
                    response="5" * 200,
                    token_ids=[step % 10] * 200,
                    versions=[max(0, step - 1)] * 200,
                    is_right=place > 0,
                )
                rows.append(row)
        write_file(run, number, rows)
    write_trace(run, STEPS)
    write_tokenizer(run)
    return run


@pytest.mark.slow
def test_a_report_of_many_runs_is_small_and_opens(tmp_path: Path, browser: Browser) -> None:
    runs = [write_large_run(tmp_path / f"run-{number}") for number in range(RUNS)]
    begin = time.perf_counter()
    sources = [opened(run, f"arm {i % ARMS}, seed {i // ARMS}", i % ARMS) for i, run in enumerate(runs)]
    swimlanes = draw_swimlanes(sources[:ARMS])
    viewer = choose_trajectories(sources)
    curves = [curve(arm, POINTS) for arm in range(ARMS)]
    items = [figure(f"figure-{number}", curves) for number in range(FIGURES)]
    text = render_page("Many runs", [ReportSection(id="all", title="All", items=[*items])], swimlanes, viewer)
    written = time.perf_counter()
    page = tmp_path / "report.html"
    page.write_text(text, encoding="utf-8")
    assert viewer.num_episodes >= EPISODES
    assert len(viewer.trajectories) == 400
    assert page.stat().st_size < MOST_BYTES
    before = browser.cpu_seconds()
    browser.open(page)
    browser.until(lambda: browser.run("return document.querySelectorAll('#figure-0 .trace').length") == ARMS)
    shown = browser.run("return performance.now()") / 1000
    busy = browser.cpu_seconds() - before
    size = page.stat().st_size / 1e6
    print(f"{size:.1f} MB, written in {written - begin:.1f} s; first plots after {shown:.1f} s, {busy:.1f} s of CPU")
    assert browser.console() == []
