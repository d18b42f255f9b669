"""A report opens in a browser without an error, draws every plot, and is used by keyboard, in the dark, on a phone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from arl.types import LATE
from tests.report.chromium import Browser
from tests.report.written_pages import HOSTILE, MARKUP, write_page

NUM_TRACES = "return document.getElementById(arguments[0] + '-plot').querySelectorAll('.trace, .hm image').length"
BACKGROUND = "return getComputedStyle(document.documentElement).backgroundColor"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("page"))


@pytest.fixture
def page(browser: Browser, path: Path) -> Iterator[Browser]:
    """Open the page; nothing may have been said in the console when the test is over."""
    browser.open(path)
    yield browser
    assert browser.console() == []


def draw_all(page: Browser) -> list[str]:
    """Bring each figure into view until it is drawn, and return their ids."""
    page.run("document.querySelectorAll('details').forEach((box) => { box.open = true; })")
    figures: list[str] = page.run("return [...document.querySelectorAll('figure')].map((figure) => figure.id)")
    for id in figures:
        page.run("document.getElementById(arguments[0]).scrollIntoView({behavior: 'instant'})", id)
        page.until(lambda id=id: page.run(NUM_TRACES, id))  # type: ignore[misc]
    return figures


def shown(page: Browser) -> int:
    return int(page.run("return document.querySelectorAll('#viewer-list li:not([hidden])').length"))


def search(page: Browser, text: str) -> None:
    box = page.find("#viewer-search")
    box.clear()
    box.send_keys(text)


def choose(page: Browser, selector: str, option: str) -> None:
    Select(page.find(selector)).select_by_visible_text(option)


def text_of(page: Browser, id: str) -> str:
    """Return an element's text as it is, which Selenium's `.text` would trim."""
    return str(page.run("return document.getElementById(arguments[0]).textContent", id))


def test_every_plot_is_drawn_with_all_its_traces(page: Browser) -> None:
    figures = draw_all(page)
    assert len(figures) == 7
    for id in figures:
        expected = page.run("return figures.parts[arguments[0]].traces.length", id)
        assert page.run(NUM_TRACES, id) == expected, id


def test_the_page_loads_nothing(page: Browser) -> None:
    draw_all(page)
    assert page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


def test_an_inline_script_that_is_not_the_pages_own_does_not_run(page: Browser) -> None:
    page.run(
        "const own = document.createElement('script'); own.textContent = \"document.title = 'broken'\";"
        "document.body.append(own)"
    )
    assert page.driver.title == MARKUP
    refusals = page.console()
    assert len(refusals) == 1
    assert "Content Security Policy" in refusals[0]


def test_an_arm_has_one_color_in_every_figure_and_is_hidden_in_all_at_once(page: Browser) -> None:
    draw_all(page)
    color = "return document.getElementById(arguments[0]).data.map((trace) => trace.line.color)"
    assert page.run(color, "reward-plot") == page.run(color, "accuracy-plot")[:2]
    page.find("#reward-legend button").send_keys(Keys.ENTER)
    visible = "return document.getElementById(arguments[0]).data.map((trace) => trace.visible)"
    page.until(lambda: page.run(visible, "accuracy-plot") == [False, True, True])
    assert page.run(visible, "reward-plot") == [False, True]
    assert page.find("#accuracy-legend button").get_attribute("aria-pressed") == "false"


def test_arms_beyond_the_eighth_are_dashed(page: Browser) -> None:
    draw_all(page)
    dashes = "return document.getElementById('accuracy-plot').data.map((trace) => trace.line.dash)"
    assert page.run(dashes) == ["solid", "solid", "dash"]


def test_series_beyond_the_eighth_are_dashed(page: Browser) -> None:
    draw_all(page)
    dashes = "return document.getElementById('axis-plot').data.map((trace) => trace.line.dash)"
    assert page.run(dashes) == ["solid", "dash"]
    swatches = "return [...document.querySelectorAll('#axis-legend .swatch')].map((own) => own.className)"
    assert page.run(swatches) == ["swatch solid", "swatch dash"]


def test_a_table_is_sorted_by_number_with_the_keyboard(page: Browser) -> None:
    header = page.all("#scores th button")[1]
    column = "return [...document.querySelectorAll('#scores tbody td:first-child')].map((cell) => cell.textContent)"
    header.send_keys(Keys.ENTER)
    assert page.run(column) == ["two", "one", "three", "four"]
    header.send_keys(Keys.ENTER)
    assert page.run(column) == ["three", "one", "two", "four"]


def test_the_theme_follows_the_system_until_the_reader_chooses(page: Browser) -> None:
    draw_all(page)
    font = "return document.getElementById('reward-plot')._fullLayout.font.color"
    light, light_font = page.run(BACKGROUND), page.run(font)
    page.prefer("dark")
    page.until(lambda: page.run(BACKGROUND) != light)
    page.until(lambda: page.run(font) != light_font)
    toggle = page.find("#theme")
    toggle.send_keys(Keys.ENTER)
    assert toggle.text == "Theme: light"
    assert page.run(BACKGROUND) == light
    page.until(lambda: page.run(font) == light_font)


def test_a_dark_page_is_printed_in_light_colors(page: Browser) -> None:
    draw_all(page)
    font = "return document.getElementById('reward-plot')._fullLayout.font.color"
    light = page.run(font)
    page.prefer("dark")
    page.until(lambda: page.run(font) != light)
    page.prefer("dark", "print")
    page.until(lambda: page.run(font) == light)
    page.prefer("dark")
    page.until(lambda: page.run(font) != light)


@pytest.mark.parametrize(
    ("ratio", "name"),
    [("0.5", "div-0"), ("1", "div-4"), ("Infinity", "div-8"), ("NaN", "no-value"), ("null", "no-value")],
)
def test_every_ratio_has_a_class(page: Browser, ratio: str, name: str) -> None:
    page_class = f"const own = {{ratio: {ratio}}}; return tokens.scale('ratio', [own]).classOf(own)"
    assert page.run(page_class) == name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_of_a_phone_scrolls_sideways(page: Browser, scheme: str) -> None:
    page.prefer(scheme)
    page.size(360, 780)
    draw_all(page)
    assert page.run("return document.documentElement.scrollWidth") <= 360
    outside = (
        "return [...document.querySelectorAll('main *')]"
        ".filter((own) => own.getBoundingClientRect().right > 360.5 && !own.closest('.scroll, svg'))"
        ".map((own) => own.id || own.className)"
    )
    assert page.run(outside) == []
    assert page.run("const box = document.querySelector('#wide .scroll'); return box.scrollWidth > box.clientWidth")


def test_the_first_tab_stop_skips_to_the_report_and_is_visible(page: Browser) -> None:
    page.press(Keys.TAB)
    assert page.driver.switch_to.active_element.text == "Skip to the report"
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press(Keys.ENTER)
    assert page.run("return location.hash") == "#main"


def test_every_control_has_a_name(page: Browser) -> None:
    draw_all(page)
    nameless = (
        "return [...document.querySelectorAll('button, input, select, [tabindex], [role=img]')].filter((own) => "
        "!own.textContent.trim() && !own.labels?.length && !own.getAttribute('aria-label') && "
        "!own.getAttribute('aria-labelledby')).map((own) => own.outerHTML)"
    )
    assert page.run(nameless) == []


def test_search_and_filters_find_trajectories(page: Browser) -> None:
    num_all = shown(page)
    search(page, "PROBLEM-13")
    assert 0 < shown(page) < num_all
    assert page.find("#viewer-title").text.endswith("problem-13")
    search(page, "no such text")
    assert shown(page) == 0
    assert not page.find("#viewer-detail").is_displayed()
    search(page, "")
    choose(page, "#viewer-fate", LATE)
    page.until(lambda: shown(page) == 12)  # one of each step
    choose(page, "#viewer-fate", "all")
    page.until(lambda: shown(page) == num_all)
    page.find("#viewer-first-step").send_keys("3")
    page.find("#viewer-last-step").send_keys("3")
    steps = "return [...document.querySelectorAll('#viewer-list li:not([hidden])')].map((own) => own.textContent)"
    page.until(lambda: shown(page) == 7)  # without the lost one
    assert all("step 3" in text for text in page.run(steps))


def test_arrow_keys_move_between_trajectories_and_tokens(page: Browser) -> None:
    page.press("/")  # from anywhere
    assert page.run("return document.activeElement.id") == "viewer-search"
    page.focus("#viewer-list")
    first = text_of(page, "viewer-subtitle")
    page.press(Keys.ARROW_DOWN)
    second = text_of(page, "viewer-subtitle")
    assert second != first
    page.press(Keys.ARROW_UP)
    assert text_of(page, "viewer-subtitle") == first
    page.focus("#viewer-tokens")
    assert "token 1 of" in text_of(page, "viewer-readout")
    page.press(Keys.ARROW_RIGHT)
    assert "token 2 of" in text_of(page, "viewer-readout")
    page.press(Keys.ARROW_DOWN)
    assert text_of(page, "viewer-subtitle") == second


def test_tokens_have_the_colors_of_the_chosen_quantity_and_all_their_numbers(page: Browser) -> None:
    choose(page, "#viewer-run", "staleness=0")
    page.find("#viewer-first-step").send_keys("9")
    page.until(lambda: "Step 9" in text_of(page, "viewer-title"))
    classes = "return [...document.querySelectorAll('#viewer-tokens .token')].map((own) => own.className)"
    seen = set()
    for kind in ("version", "age", "ratio", "advantage", "mask"):
        page.focus(f"input[name=coloring][value={kind}]")
        page.press(Keys.SPACE)
        seen.add(tuple(page.run(classes)))
        assert text_of(page, "viewer-scale")
    assert len(seen) == 5
    assert text_of(page, "viewer-tokens") == text_of(page, "viewer-response")
    numbers = text_of(page, "viewer-readout")
    assert "ratio to proximal1.221" in numbers  # exp(-0.4 + 0.6)
    assert "behavior weight0.9048" in numbers  # exp(-0.6 + 0.5)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_model_wrote_is_shown_as_text(page: Browser, name: str) -> None:
    search(page, name)
    text = HOSTILE[name].replace("\x00", "␀").replace("\x07", "␇")
    for place in ("prompt", "response", "answer"):
        assert text_of(page, f"viewer-{place}") == text
    assert page.run("return document.querySelectorAll('img').length") == 0
    assert page.driver.title == MARKUP
