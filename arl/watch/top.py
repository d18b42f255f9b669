"""Show the status of a run in a terminal, until it ends.

status.json ─► read_status ─► draw_status ─► rich Live, twice a second ─► q, Ctrl-C, or the end of the run
"""

import contextlib
import select
import sys
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from arl.metrics.run_status import RunStatus
from arl.metrics.status_view import MAX_PROCESSES, draw_status, rows_that_fit
from arl.watch.liveness import StatusWatch, describe_silence

PERIOD = 0.5  # seconds between two looks


def show_once(run: Path, console: Console) -> None:
    """Print the status as it is."""
    watch = StatusWatch(run)
    console.print(_draw(run, watch.read(), watch), soft_wrap=True)


def show_live(run: Path, console: Console) -> None:
    """Draw the status until the run ends, q is pressed or Ctrl-C."""
    watch = StatusWatch(run)
    status = watch.read()
    with (
        _single_keys(),  # first, so that no key is lost
        Live(_draw(run, status, watch, rows_that_fit(console.height)), console=console, auto_refresh=False) as live,
    ):
        while not status.end and not _pressed_q(PERIOD):
            status = watch.read()
            live.update(_draw(run, status, watch, rows_that_fit(console.height)), refresh=True)


def _draw(run: Path, status: RunStatus, watch: StatusWatch, max_processes: int = MAX_PROCESSES) -> RenderableType:
    """Draw the status; of a run that is silent, first what is known of that, and nothing that was true only then."""
    if status.end or not watch.is_silent:
        return draw_status(status, str(run), max_processes)
    silence = Text(describe_silence(run, status, watch.silence), style="bold red")
    last = structs.replace(status, stage=f"last seen: {status.stage}", waits=(), seconds_left=None)
    return Group(silence, draw_status(last, str(run), max_processes))


def _pressed_q(seconds: float) -> bool:
    """Wait so long at most for a key; return whether q was pressed."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and sys.stdin.read(1) in {"q", "Q", ""}


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Read single keys from the terminal, which Ctrl-C still interrupts."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
