"""A page holds everything that it shows, as data that no text can break out of, and allows its own scripts alone."""

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.report.packed_numbers import LONG, pack_numbers
from arl.report.page import SCRIPTS, STYLES, data_block, render_page
from arl.report.parts import Figure, Prose, ReportSection, Table

MARKUP = "</script></title><img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """Collect the elements of a page, and the content of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.policy = ""
        self.is_in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        own = dict(attrs)
        self.is_in_script = tag == "script"
        if tag == "script":
            self.scripts.append((own, ""))
        if own.get("http-equiv") == "Content-Security-Policy":
            self.policy = own["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self.is_in_script = False

    def handle_data(self, data: str) -> None:
        if self.is_in_script:
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)


def page_of(text: str) -> str:
    figure = Figure(id="one", title=text, caption=text, traces=[{"type": "scatter", "name": text, "y": [1, 2]}])
    table = Table(id="two", title=text, caption=text, header=[text], rows=[[text]])
    items: list[Figure | Table | Prose] = [figure, table, Prose(id="three", lines=[text])]
    return render_page(text, [ReportSection(id="all", title=text, items=items)])


@given(st.text())
def test_data_in_a_page_is_read_back_as_it_was(text: str) -> None:
    block = data_block("data", {"text": text, "number": math.nan})
    [(attributes, content)] = Reader(block).scripts
    assert attributes == {"type": "application/json", "id": "data"}
    assert "<" not in content
    assert json.loads(content) == {"text": text, "number": None}


@pytest.mark.parametrize("text", [MARKUP, "<!--<script>", "\udcff", "\x00", "a\u2028b", "' onclick='x"])
def test_no_text_becomes_an_element_or_an_attribute(text: str) -> None:
    plain = Reader(page_of("plain"))
    hostile = Reader(page_of(text))
    assert hostile.tags == plain.tags
    assert [own for own, _ in hostile.scripts] == [own for own, _ in plain.scripts]


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_from_elsewhere() -> None:
    page = Reader(page_of("plain"))
    programs = [content for attributes, content in page.scripts if "type" not in attributes]
    assert len(programs) == 1 + len(SCRIPTS)
    digests = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in programs]
    allowed = re.findall(r"'sha256-([^']+)'", page.policy)
    assert allowed == digests
    assert page.policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in page.policy
    assert "unsafe-inline" not in page.policy.split("style-src")[0]


@pytest.mark.parametrize("name", [*SCRIPTS, *STYLES])
def test_assets_name_no_address(name: str) -> None:
    source = files("arl.report").joinpath("assets", name).read_text(encoding="utf-8")
    assert "http" not in source
    assert "@import" not in source


@pytest.mark.parametrize("name", [*SCRIPTS, *STYLES, "viewer.html"])
def test_assets_are_small_files(name: str) -> None:
    lines = files("arl.report").joinpath("assets", name).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250
    assert max(map(len, lines)) <= 130


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_javascript(name: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node: apt-get install nodejs")
    path = files("arl.report").joinpath("assets", name)
    checked = subprocess.run([node, "--check", str(path)], capture_output=True, text=True, check=False, timeout=60)
    assert checked.returncode == 0, checked.stderr


@given(st.lists(st.none() | st.floats(allow_infinity=False, width=32) | st.integers(0, 10**12), min_size=LONG))
def test_packed_numbers_are_those_that_were_given(values: list[float | None]) -> None:
    [trace] = pack_numbers([{"x": values, "name": "a"}])
    assert trace["name"] == "a"
    array = np.frombuffer(base64.b64decode(trace["x"]["bdata"]), f"<{trace['x']['dtype']}")
    expected = np.array([math.nan if value is None else value for value in values], np.float64)
    np.testing.assert_allclose(array, expected, rtol=1e-6)


@pytest.mark.parametrize("values", [[1.0] * (LONG - 1), ["step"] * LONG, [True] * LONG, [[1.0]] * LONG])
def test_short_lists_and_other_values_stay_as_they_are(values: list[Any]) -> None:
    assert pack_numbers([{"y": values}]) == [{"y": values}]
