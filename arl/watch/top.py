"""Show the status of a run in a terminal, until it ends, from any host that sees the run's directory.

status.json ─► StatusWatch ─► draw_status ─► rich Live, twice a second ─► q, Ctrl-C, or the end of the run

The controller runs if it holds run.lock or if status.json is new; otherwise what is known of its process is shown.
"""

import select
import sys
import termios
import time
import tty
from pathlib import Path

from msgspec import structs
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from arl.files import is_locked
from arl.metrics.run_files import LOCK, RECIPE
from arl.metrics.run_status import MAX_PROCESSES, SILENT_SECONDS, RunStatus, draw_status, read_status, rows_that_fit

PERIOD = 0.5  # seconds between two looks


class StatusWatch:
    """Read the status of a run again and again, and count for how long nothing new has come.

    Clocks of two hosts may differ by more than these seconds, so the age of a status counts only where this host has
    written it. Otherwise this host's clock counts from the moment at which the status was first seen here.

    Raises:
        InputError: this is no run, or one that writes no status.
        DataError: the file is damaged.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self.status = read_status(run)
        self._seen_at = time.monotonic()

    def read(self) -> None:
        """Read the newest status."""
        status = read_status(self._run)
        if status != self.status:
            self.status = status
            self._seen_at = time.monotonic()

    @property
    def silence(self) -> float | None:
        """Return for how many seconds nothing new has come; None: the run has ended, or it is not long."""
        age = time.time() - self.status.time if self.status.is_of_this_host else 0.0
        seconds = max(age, time.monotonic() - self._seen_at)
        return None if self.status.end or seconds < SILENT_SECONDS else seconds

    def draw(self, max_processes: int = MAX_PROCESSES) -> RenderableType:
        """Draw the status; of a silent run, first what is known of that, and nothing that was true only then."""
        seconds = self.silence
        if seconds is None:
            return draw_status(self.status, str(self._run), max_processes)
        said = Text(describe_silence(self._run, self.status, seconds), style="bold red")
        last = structs.replace(self.status, stage=f"last seen: {self.status.stage}", waits=(), seconds_left=None)
        return Group(said, draw_status(last, str(self._run), max_processes))


def describe_silence(run: Path, status: RunStatus, seconds: float) -> str:
    """Describe a status after which none has come for `seconds`: is its controller gone, or does it hang?"""
    silence = f"the controller (process {status.pid} on {status.host}) has not written for {seconds:.0f} s"
    if is_locked(run / LOCK):
        return f"{silence}; the run's lock is held, so it runs, and hangs or is stopped"
    if not status.is_of_this_host:
        return f"{silence}; whether it still runs can be seen on {status.host} alone"
    remedy = f"`arl train {run}/{RECIPE} --resume` goes on from its newest checkpoint"
    return f"{silence}; no process holds the run's lock any more: it was killed; {remedy}"


def show_once(run: Path, console: Console) -> None:
    """Print the status as it is."""
    console.print(StatusWatch(run).draw(), soft_wrap=True)


def show_live(run: Path, console: Console) -> None:
    """Draw the status until the run ends, q is pressed or Ctrl-C."""
    watch = StatusWatch(run)
    keys = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSANOW)  # single keys, which Ctrl-C still interrupts; first, so that none is lost
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(watch.draw(rows_that_fit(console.height)), refresh=True)
                pressed, _, _ = select.select([sys.stdin], [], [], PERIOD)
                if watch.status.end or (pressed and sys.stdin.read(1) in {"q", "Q", ""}):
                    return
                watch.read()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, keys)
