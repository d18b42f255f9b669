"""Open pages in headless Chromium. Closing it ends its process tree, and every wait has a deadline."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

T = TypeVar("T")

BROWSER = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
WAIT_SECONDS = 60
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which Chromium cannot set up as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
)


class Browser:
    """Drive one tab."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, page: Path) -> None:
        """Load a file, at the width of a desk and in light colors."""
        self.size(1280, 900)
        self.prefer("light")
        self.console()
        self.driver.get(page.as_uri())

    def size(self, width: int, height: int) -> None:
        """Give the tab a size in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str, media: str = "screen") -> None:
        """Choose the system's color scheme, and what the page is shown on: screen or print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def run(self, script: str, *args: Any) -> Any:
        """Run a script in the page and return what it returns."""
        return self.driver.execute_script(script, *args)

    def find(self, selector: str) -> WebElement:
        """Return the first element that matches."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """Return all elements that match."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def focus(self, selector: str) -> None:
        """Give an element the focus, as tabbing to it does."""
        self.run("document.querySelector(arguments[0]).focus()", selector)

    def press(self, *keys: str) -> None:
        """Press keys at the element that has the focus."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def until(self, condition: Callable[[], T]) -> T:
        """Wait until a condition holds."""
        return WebDriverWait(self.driver, WAIT_SECONDS, 0.05).until(lambda _: condition())

    def cpu_seconds(self) -> float:
        """Return the CPU time of the page's main thread since it was opened, whatever else the machine does."""
        self.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime"))

    def console(self) -> list[str]:
        """Return what the console has got since the last call."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries]


@contextlib.contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile."""
    assert BROWSER is not None
    assert DRIVER is not None
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    processes = _tree(driver.service.process.pid)
    try:
        driver.set_page_load_timeout(WAIT_SECONDS)
        driver.set_script_timeout(WAIT_SECONDS)
        yield Browser(driver)
    finally:
        processes += [process for process in _tree(driver.service.process.pid) if process not in processes]
        driver.quit()
        _, alive = psutil.wait_procs(processes, timeout=10)
        for process in alive:
            process.kill()


def _tree(pid: int) -> list[psutil.Process]:
    driver = psutil.Process(pid)
    return [driver, *driver.children(recursive=True)]
