"""Start one Chromium for the tests of a process. Where there is none, they are skipped and say so."""

from collections.abc import Iterator

import pytest

from tests.report.chromium import BROWSER, DRIVER, Browser, open_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if BROWSER is None or DRIVER is None:
        pytest.skip("no chromium with chromedriver: apt-get install chromium chromium-driver")
    with open_browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened
