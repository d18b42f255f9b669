"""Show the status of a run in a terminal, until it ends, from any host that sees the run's directory.

status.json ─► draw ─► rich Live, twice a second ─► q, Ctrl-C, or the end of the run

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
from arl.metrics.run_status import MAX_PROCESSES, RunStatus, draw_status, read_status, rows_that_fit

PERIOD = 0.5  # seconds between two looks
SILENT_SECONDS = 5.0  # without a new status; then it is said that the controller has not written
SILENT_SECONDS_ELSEWHERE = 60.0  # the same for a controller on another host, whose clock may differ


def silence(status: RunStatus) -> float | None:
    """Return for how many seconds nothing new has come; None: the run has ended, or it is not long."""
    seconds = time.time() - status.time
    limit = SILENT_SECONDS if status.is_of_this_host else SILENT_SECONDS_ELSEWHERE
    return None if status.end or seconds < limit else seconds


def draw(run: Path, status: RunStatus, max_processes: int = MAX_PROCESSES) -> RenderableType:
    """Draw the status; of a silent run, first what is known of that, and nothing that was true only then."""
    seconds = silence(status)
    if seconds is None:
        return draw_status(status, str(run), max_processes)
    said = Text(describe_silence(run, status, seconds), style="bold red")
    last = structs.replace(status, stage=f"last seen: {status.stage}", waits=(), seconds_left=None)
    return Group(said, draw_status(last, str(run), max_processes))


def describe_silence(run: Path, status: RunStatus, seconds: float) -> str:
    """Describe a status after which none has come for `seconds`: is its controller gone, or does it hang?"""
    said = f"the controller (process {status.pid} on {status.host}) has not written for {seconds:.0f} s"
    if is_locked(run / LOCK):
        return f"{said}; the run's lock is held, so it runs, and hangs or is stopped"
    if not status.is_of_this_host:
        return f"{said}; whether it still runs can be seen on {status.host} alone"
    remedy = f"`arl train {run}/{RECIPE} --resume` goes on from its newest checkpoint"
    return f"{said}; no process holds the run's lock any more: it was killed; {remedy}"


def show_once(run: Path, console: Console) -> None:
    """Print the status as it is."""
    console.print(draw(run, read_status(run)), soft_wrap=True)


def show_live(run: Path, console: Console) -> None:
    """Draw the status until the run ends, q is pressed or Ctrl-C."""
    keys = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSANOW)  # single keys, which Ctrl-C still interrupts; first, so that none is lost
    try:
        with Live(console=console, auto_refresh=False) as live:
            pressed = None
            while pressed not in {"q", "Q", ""}:
                status = read_status(run)
                live.update(draw(run, status, rows_that_fit(console.height)), refresh=True)
                if status.end:
                    return
                ready, _, _ = select.select([sys.stdin], [], [], PERIOD)
                pressed = sys.stdin.read(1) if ready else None
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, keys)
