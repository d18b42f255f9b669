"""Define status.json: what a run does at this moment, and draw it for `arl top` and the dashboard of `arl train`.

controller ─► RunStatus, once a second ─► status.json, replaced as a whole ─► read_status, on any host that sees it

What is not known is None. It is drawn like this:

runs/small · training · version 12 of 60 · 0.8 s a step · about 38 s left
trainer    waits 62% of the time: for groups 60%, for the staleness bound 2%
engines    idle 5% of the time; 3% because no group may start before weights are loaded
now        trainer waits 0.3 s for 4 groups for step 12
groups     8 of 12 in flight: 6 running, 2 finished; a step takes 4
…
role      node  pid     up  version  open  slots  waiting  cache   memory
engine-0  vm     17  5.0 s       12     9   8/32        1     4%  0.51 GB
"""

import os
import platform
from collections.abc import Iterator
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
RUNS = "runs"  # state of a process that has not ended

MAX_PROCESSES = 24  # rows; a run may have hundreds
MIN_PROCESSES = 4
OTHER_LINES = 18  # headline, facts, of which some take two lines, heads of the columns, a progress bar
MAX_WAITS = 3
UNKNOWN = "–"
LEFT = ("role", "node", "pid", "state")  # columns of words
CAUSES = {"groups": "for groups", "bound": "for the staleness bound", "device": "for the device"}


class ProcessStatus(Struct, frozen=True, kw_only=True):
    """Describe one process of a run."""

    role: str
    node: str
    pid: int  # 0: its node is still starting it
    state: str = RUNS  # or how it has ended
    since: float | None = None  # its start, as time.time(); of another node: when the controller has first seen it
    restarts: int = 0  # of its role
    memory_bytes: int | None = None  # resident, with all that it has started; of another node: as last reported
    version: int | None = None  # loaded weights of an engine
    open_requests: int | None = None
    running: int | None = None  # requests, as the engine has last reported, like the next four
    waiting: int | None = None
    slots: int | None = None
    cache_tokens: int | None = None
    cache_capacity: int | None = None


class WaitStatus(Struct, frozen=True):
    """Describe one wait of the controller."""

    who: str
    what: str
    seconds: float


class GroupsStatus(Struct, frozen=True, kw_only=True):
    """Count the groups in flight."""

    running: int  # their episodes are under way
    finished: int  # scored; they wait for their step
    capacity: int | None  # most that may be in flight at once; None: no rule says it
    problems_per_step: int


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
    clock: float  # the same moment on the run's clock, as in trace.json
    stage: str  # starting, evaluation before training, training …
    end: str = ""  # how the run has ended; empty: it goes on
    version: int = 0
    steps: int  # versions of the whole run, at most
    tokens: int = 0  # loss tokens that are trained
    most_tokens: int | None = None  # train.tokens, with which the run ends; None: with `steps`
    loaded_version: int = 0
    staleness: int | None = None  # the bound; None: there is none
    has_exact_lag: bool = False  # rollout.lag takes the place of the bound
    groups: GroupsStatus | None = None
    waits: tuple[WaitStatus, ...] = ()  # longest first
    last_step: dict[str, float] = {}  # numbers of its record
    speed: Speed | None = None
    evaluations: dict[str, tuple[int, float]] = {}  # suite -> newest version, accuracy
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
    return Group(headline, facts) if status.end else Group(headline, facts, _processes(status, max_processes))


def _headline(status: RunStatus, name: str) -> str:
    parts = [name] if name else []
    parts += [status.end or status.stage, f"version {status.version} of {status.steps}"]
    if status.most_tokens is not None:
        parts.append(f"{status.tokens:,} of {status.most_tokens:,} tokens")
    if status.speed is not None:
        parts.append(f"{_seconds(status.speed.step_seconds)} a step")
    if status.seconds_left is not None and not status.end:
        parts.append(f"about {_seconds(status.seconds_left)} left")
    return " · ".join(parts)


def _facts(status: RunStatus) -> Iterator[tuple[str, str]]:
    """Yield a title and a line for each thing that is known."""
    speed = status.speed
    groups = status.groups
    if speed is not None:
        percents = {cause: round(100 * share) for cause, share in speed.trainer_waits.items()}
        parts = ", ".join(f"{CAUSES[cause]} {percent}%" for cause, percent in percents.items() if percent)
        yield "trainer", f"waits {sum(percents.values())}% of the time" + (f": {parts}" if parts else "")
        held_back = f"; {speed.gate:.0%} because no group may start before weights are loaded"
        yield "engines", f"idle {speed.engine_idle:.0%} of the time{held_back if speed.gate >= 0.005 else ''}"
    if not status.end:
        for wait in status.waits[:MAX_WAITS]:
            cause = wait.what.partition(";")[0]  # without counts, which other lines show
            yield "now", f"{wait.who} waits {_seconds(wait.seconds)} for {cause}"
    if groups is not None and not status.end:
        most = "" if groups.capacity is None else f" of {groups.capacity}"
        in_flight = f"{groups.running + groups.finished}{most} in flight"
        parts = f"{groups.running} running, {groups.finished} finished"
        yield "groups", f"{in_flight}: {parts}; a step takes {groups.problems_per_step}"
    if groups is not None:
        yield "staleness", _staleness(status)
    if speed is not None:
        rates = f"{speed.generated_per_s:,.0f} generated, {speed.trained_per_s:,.0f} trained"
        yield "tokens/s", f"{rates} (last {speed.steps} steps)"
    step = status.last_step
    rewards = [f"{step['reward/trained_mean']:.3f} in step {step['step']:.0f}"] if step else []
    rewards += [f"{suite} {score:.3f} at version {version}" for suite, (version, score) in status.evaluations.items()]
    if rewards:
        yield "reward", " · ".join(rewards)


def _staleness(status: RunStatus) -> str:
    bound = "no bound" if status.staleness is None else f"bound {status.staleness}"
    if status.has_exact_lag:
        bound = "exact lag"
    text = f"{bound}; engines serve version {status.loaded_version}, the trainer has {status.version}"
    step = status.last_step
    if {"staleness/mean", "staleness/max"} <= step.keys():
        text += f"; last step mean {step['staleness/mean']:.2f}, max {step['staleness/max']:.0f}"
    return text


def _processes(status: RunStatus, most: int) -> RenderableType:
    """Draw a row for each process, of many for those that have ended or were restarted; without empty columns."""
    in_trouble_first = sorted(status.processes, key=lambda process: (process.state == RUNS, -process.restarts))
    shown = [process for process in status.processes if process in in_trouble_first[:most]]
    rows = [_row(process, status.time) for process in shown]
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] is not None for row in rows)]
    for name in columns:
        table.add_column(name, no_wrap=True, justify="left" if name in LEFT else "right")
    for row in rows:
        table.add_row(*(Text(UNKNOWN if row[name] is None else str(row[name])) for name in columns))
    left_out = len(status.processes) - len(shown)
    return Group(table, Text(f"… and {left_out} more processes", style="dim")) if left_out else table


def _row(process: ProcessStatus, at: float) -> dict[str, str | int | None]:
    slots = memory = cache = None
    if process.slots is not None:
        slots = f"{process.running}/{process.slots}"
    if process.cache_capacity:
        cache = f"{(process.cache_tokens or 0) / process.cache_capacity:.0%}"
    if process.memory_bytes is not None:
        memory = f"{process.memory_bytes / 1e9:.2f} GB"
    return {
        "role": process.role,
        "node": process.node,
        "pid": process.pid or None,
        "state": None if process.state == RUNS else process.state,
        "up": None if process.since is None else _seconds(at - process.since),
        "restarts": process.restarts or None,
        "version": process.version,
        "open": process.open_requests,
        "slots": slots,
        "waiting": process.waiting,
        "cache": cache,
        "memory": memory,
    }


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
