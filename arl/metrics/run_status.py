"""Define status.json: what a run does at this moment, and draw it for `arl top` and the dashboard of `arl train`.

controller ─► RunStatus, once a second ─► status.json, replaced as a whole ─► read_status, on any host that sees it

What is not known is None. It is drawn like this:

runs/small · training · version 12 of 60 · 0.8 s a step · about 38 s left
trainer    waits 62% of the time: for groups 60%, for the staleness bound 2%
engines    idle 5% of the time; 3% because no group may start before weights are loaded
now        trainer waits 0.3 s for 4 groups for step 12
groups     6 running, 2 finished
…
role      node  pid  version  open  slots  waiting  cache   memory
engine-0  vm     17       12     9   8/32        1     4%  0.51 GB
"""

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from arl.errors import DataError, InputError, printable
from arl.files import replace_file
from arl.metrics.run_files import RECIPE

STATUS_FILE = "status.json"

MAX_PROCESSES = 24  # rows; a run may have hundreds
MIN_PROCESSES = 4
OTHER_LINES = 18  # headline, facts, of which some take two lines, heads of the columns, a progress bar
UNKNOWN = "–"
LEFT = ("role", "node", "pid", "state")  # columns of words
CAUSES = {"groups": "for groups", "bound": "for the staleness bound", "device": "for the device"}


class ProcessStatus(Struct, frozen=True, kw_only=True):
    """Describe one process of a run: a row of the table, without what is None."""

    role: str
    node: str
    pid: int | None  # None: its node is still starting it
    state: str | None = None  # what it does instead of running, or how it has ended; None: it runs
    restarts: int | None = None  # of an engine
    version: int | None = None  # loaded weights of an engine
    open: int | None = None  # requests of the controller
    slots: str | None = None  # as the engine has last reported, like the next two
    waiting: int | None = None
    cache: str | None = None
    memory_bytes: int | None = None  # resident, with all that it has started; None: it runs on another node


class WaitStatus(Struct, frozen=True):
    """Describe one wait of the controller."""

    who: str
    what: str
    seconds: float


class Speed(Struct, frozen=True, kw_only=True):
    """Hold means over the last steps."""

    steps: int  # that the means are over
    step_seconds: float
    generated_per_s: float  # tokens
    trained_per_s: float
    trainer_waits: dict[str, float]  # cause -> share of the time: groups, bound, device
    engine_idle: float  # share of the time
    gate: float  # share in which nothing was open, because no group might start


class RunStatus(Struct, frozen=True, kw_only=True):
    """Describe a run at one moment."""

    host: str  # of the controller
    pid: int
    time: float  # when this was written, as time.time() on that host
    stage: str  # starting, evaluation before training, training …
    end: str = ""  # how the run has ended; empty: it goes on
    version: int = 0
    steps: int  # versions of the whole run, at most
    loaded_version: int = 0
    bound: str  # on the staleness, in words
    groups: tuple[int, int] | None = None  # in flight: those whose episodes are under way, and those that are finished
    waits: tuple[WaitStatus, ...] = ()  # longest first
    speed: Speed | None = None
    rewards: dict[str, tuple[int, float]] = {}  # training, or a suite -> newest version, mean
    alarms: tuple[str, ...] = ()  # of arl.metrics.alarms
    seconds_left: float | None = None
    processes: tuple[ProcessStatus, ...] = ()

    @property
    def is_of_this_host(self) -> bool:
        """Return whether it was written by the clock of the host that reads it."""
        return self.host == platform.node()


def write_status(run: Path, status: RunStatus) -> None:
    """Replace the status of a run. A reader sees the old one or the new one, and never a part."""
    replace_file(run / STATUS_FILE, msgspec.json.encode(status))


def read_status(run: Path) -> RunStatus:
    """Read the status of a run.

    Raises:
        InputError: this is no run, or one that writes no status.
        DataError: the file is damaged.
    """
    require_run(run)
    file = run / STATUS_FILE
    if not file.exists():
        raise InputError(f"{run}: has no {STATUS_FILE}; a run has one from its start-up on, unless its time is virtual")
    try:
        return msgspec.json.decode(file.read_bytes(), type=RunStatus)
    except msgspec.DecodeError as error:
        raise DataError(f"{file}: is damaged, or of another version of arl ({error})") from error


def require_run(run: Path) -> None:
    """Check that `run` is the directory of a run.

    Raises:
        InputError: it is not, or it cannot be looked at; names runs beside or below it.
    """
    if not os.path.isdir(run):
        raise InputError(f"{run}: is no directory; give that of a run of yours, like runs/quickstart")
    if os.path.isfile(run / RECIPE):
        return
    below = [recipe.parent for recipe in sorted(run.glob(f"*/{RECIPE}"))]
    hint = f"; there are {', '.join(str(path) for path in below[:4])}" if below else ""
    raise InputError(f"{run}: is no run, because it has no {RECIPE}{hint}")


# ---- the view


def rows_that_fit(height: int) -> int:
    """Return how many processes a terminal of so many lines shows. A live view cuts off what lies below its end."""
    return max(min(height - OTHER_LINES, MAX_PROCESSES), MIN_PROCESSES)


def draw_status(status: RunStatus, name: str = "", max_processes: int = MAX_PROCESSES) -> RenderableType:
    """Draw one moment of the run called `name`."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    for title, text in _facts(status):
        facts.add_row(title, Text(text))
    headline = Text(printable(_headline(status, name)), style="bold")
    if status.end:
        return Group(headline, facts)
    return Group(headline, facts, draw_processes(status.processes, max_processes))


def _headline(status: RunStatus, name: str) -> str:
    parts = [name] if name else []
    parts += [status.end or status.stage, f"version {status.version} of {status.steps}"]
    if status.speed is not None:
        parts.append(f"{_seconds(status.speed.step_seconds)} a step")
    if status.seconds_left is not None and not status.end:
        parts.append(f"about {_seconds(status.seconds_left)} left")
    return " · ".join(parts)


def _facts(status: RunStatus) -> Iterator[tuple[str, str]]:
    """Yield a title and a line for each thing that is known."""
    speed = status.speed
    if speed is not None:
        percents = {cause: round(100 * share) for cause, share in speed.trainer_waits.items()}
        parts = ", ".join(f"{CAUSES[cause]} {percent}%" for cause, percent in percents.items() if percent)
        yield "trainer", f"waits {sum(percents.values())}% of the time" + (f": {parts}" if parts else "")
        held_back = f"; {speed.gate:.0%} because no group may start before weights are loaded"
        yield "engines", f"idle {speed.engine_idle:.0%} of the time{held_back if speed.gate >= 0.005 else ''}"
    if not status.end:
        for wait in status.waits:
            cause = wait.what.partition(";")[0]  # without counts, which other lines show
            yield "now", f"{wait.who} waits {_seconds(wait.seconds)} for {cause}"
    if status.groups is not None:
        running, finished = status.groups
        yield "groups", f"{running} running, {finished} finished"
        versions = f"engines serve version {status.loaded_version}, the trainer has {status.version}"
        yield "staleness", f"{status.bound}; {versions}"
    if speed is not None:
        rates = f"{speed.generated_per_s:,.0f} generated, {speed.trained_per_s:,.0f} trained"
        yield "tokens/s", f"{rates} (last {speed.steps} steps)"
    if status.rewards:
        rewards = (f"{name} {mean:.3f} at version {version}" for name, (version, mean) in status.rewards.items())
        yield "reward", " · ".join(rewards)
    for alarm in status.alarms:
        yield "alarm", alarm


def draw_processes(processes: Sequence[ProcessStatus], most: int = MAX_PROCESSES) -> RenderableType:
    """Draw a row for each process, of many for those that have ended or were restarted; without empty columns."""
    in_trouble_first = sorted(processes, key=lambda process: (process.state is None, process.restarts is None))
    shown = [process for process in processes if process in in_trouble_first[:most]]
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = {name: [getattr(process, name) for process in shown] for name in ProcessStatus.__struct_fields__}
    sizes = columns.pop("memory_bytes")
    columns["memory"] = [None if size is None else f"{size / 1e9:.2f} GB" for size in sizes]
    columns = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    for name in columns:
        table.add_column(name, no_wrap=True, justify="left" if name in LEFT else "right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(Text(UNKNOWN if cell is None else str(cell)) for cell in row))
    left_out = len(processes) - len(shown)
    return Group(table, Text(f"… and {left_out} more processes", style="dim")) if left_out else table


def _seconds(seconds: float) -> str:
    """Write a time as people say it: 0.8 s, 48 s, 12 min, 3 h 05 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"
