"""A page opens offline, shows episodes of every outcome token by token, and runs no text of a model."""

from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from arl.report.arms import Arm
from arl.report.assemble import Report, build_report
from arl.report.comparison import Comparison
from arl.report.drawing import draw
from arl.report.output import render_page
from arl.report.parts import Figure, ReportSection, Table, line
from arl.report.token_viewer import MAX_TOKENS, ShownEpisode, choose_episodes
from tests.report import synthetic_runs, written_runs

MARKUP = "</script></title><img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """Collect the elements of a page, and their attributes' names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[str]]] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, [name for name, _ in attrs]))
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]


def page_of(text: str) -> str:
    figure = Figure(
        title=text,
        caption=text,
        x_title=text,
        y_title=text,
        series=[line(0, text, np.arange(2.0), np.arange(2.0))],
        ticks=[text, text],
    )
    table = Table(text, text, [text], [[text]])
    sections = [ReportSection(id="all", title=text, items=[figure, table, text])]
    report = Report(text, [text], [], Comparison([], [], {}, []), [], sections)
    return render_page(report, [ShownEpisode(text, text, text, [])], [text])


@pytest.mark.parametrize("text", [MARKUP, "' onclick='x", '" onclick="x'])
def test_no_text_becomes_an_element_or_an_attribute(text: str) -> None:
    assert Reader(page_of(text)).tags == Reader(page_of("plain")).tags


def test_a_long_name_goes_on_in_the_next_line_of_the_legend() -> None:
    names = ["short", ", ".join(f"setting_{number}=value" for number in range(12))]
    series = [line(number, name, np.arange(2.0), np.arange(2.0)) for number, name in enumerate(names)]
    drawing = draw(Figure(title="", x_title="", y_title="", series=series))
    texts = [element.text or "" for element in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")]
    legend = texts[texts.index("short") :]
    assert " ".join(legend) == " ".join(names)
    assert max(map(len, legend)) <= 62
    assert f'viewBox="0 0 420 {262 + 16 * len(legend)}"' in drawing


def test_a_page_loads_nothing() -> None:
    assert all(address.startswith("#") for address in Reader(page_of("plain")).addresses)


def arm_with_trajectories(directory: Path, num_steps: int) -> Arm:
    run = synthetic_runs.write_run(directory)
    written_runs.write_run(run, num_steps)
    return build_report([run]).arms[0]


def test_episodes_are_spread_over_steps_and_outcomes_with_the_text_of_the_runs_own_tokenizer(tmp_path: Path) -> None:
    notes: list[str] = []
    shown = choose_episodes([arm_with_trajectories(tmp_path / "run", 40)], notes)
    assert not notes
    outcomes = [episode.title.split(" · ")[1] for episode in shown]
    assert {outcome: outcomes.count(outcome) for outcome in set(outcomes)} == {"right": 20, "wrong": 20, "lost": 20}
    steps = [int(episode.title.split("step ")[1].split(" ")[0]) for episode in shown if "· step " in episode.title]
    assert min(steps) <= 2
    assert max(steps) >= 39
    last = next(episode for episode in shown if f"step {max(steps)} " in episode.title)
    assert "".join(token.text for token in last.tokens).startswith(f"{max(steps) - 1}+")
    assert last.tokens[0].kind == "age-2"
    assert last.tokens[0].hint == (
        f"version {max(steps) - 3}, age 2, behavior logprob -0.5, proximal logprob -0.6, current logprob -0.4"
    )
    assert shown == choose_episodes([arm_with_trajectories(tmp_path / "again" / "run", 40)], notes)


def test_a_long_episode_is_cut_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    arm = arm_with_trajectories(tmp_path / "run", 1)
    written_runs.write_file(tmp_path / "run", 0, [written_runs.episode(0, 0, 0, "4", [1] * (MAX_TOKENS + 7))])
    (tmp_path / "run" / "trajectories" / "000001.parquet").write_bytes(b"PAR1")
    notes: list[str] = []
    (shown,) = choose_episodes([arm], notes)
    assert len(shown.tokens) == MAX_TOKENS
    (note,) = notes
    assert "run/trajectories/000001.parquet: cannot be read" in note
