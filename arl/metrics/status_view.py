"""Draw the status of a run, for `arl top` and the dashboard of `arl train`.

runs/small · training · version 12 of 60 · 0.8 s a step · about 38 s left
trainer    waits 62% of the time: for groups 60%, for the staleness bound 2%
engines    idle 5% of the time; 3% because no group may start before weights are loaded
now        trainer waits 0.3 s for 4 groups for step 12
groups     8 of 12 in flight: 6 running, 2 finished; a step takes 4
…
role      node  pid     up  version  open  slots  waiting  cache   memory
engine-0  vm     17  5.0 s       12     9   8/32        1     4%  0.51 GB
"""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from arl.errors import printable
from arl.metrics.run_status import RUNS, ProcessStatus, RunStatus, Speed

MAX_PROCESSES = 24  # rows; a run may have hundreds
MIN_PROCESSES = 4
OTHER_LINES = 19  # headline, facts, of which some take two lines, heads of the columns, a progress bar
MAX_WAITS = 3
MAX_NAME = 24
UNKNOWN = "–"
LEFT = ("role", "node", "pid", "state")  # columns of words


def rows_that_fit(height: int) -> int:
    """Return how many processes a terminal of so many lines shows. A live view cuts off what lies below its end.

    >>> rows_that_fit(24), rows_that_fit(30), rows_that_fit(100)
    (5, 11, 24)
    """
    return max(min(height - OTHER_LINES, MAX_PROCESSES), MIN_PROCESSES)


def draw_status(status: RunStatus, name: str = "", max_processes: int = MAX_PROCESSES) -> RenderableType:
    """Draw one moment of the run called `name`."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for title, text in _facts(status):
        facts.add_row(Text(title), Text(text))
    headline = Text(printable(_headline(status, name)), style="bold")
    if status.end:
        return Group(headline, facts)
    return Group(headline, facts, _processes(status, max_processes))


def _headline(status: RunStatus, name: str) -> str:
    short = name if len(name) <= MAX_NAME else f"…/{name.rpartition('/')[2]}"
    parts = [short] if name else []
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
    if status.speed is not None:
        yield "trainer", _trainer(status.speed)
        gate = status.speed.gate
        held_back = f"; {gate:.0%} because no group may start before weights are loaded" if gate >= 0.005 else ""
        yield "engines", f"idle {status.speed.engine_idle:.0%} of the time{held_back}"
    for wait in status.waits[:MAX_WAITS] if not status.end else ():
        cause = wait.what.partition(";")[0]  # without counts, which other lines show
        yield "now", f"{wait.who} waits {_seconds(wait.seconds)} for {cause}"
    if status.groups is not None:
        if not status.end:
            groups = status.groups
            most = "" if groups.capacity is None else f" of {groups.capacity}"
            in_flight = f"{groups.running + groups.finished}{most} in flight"
            parts = f"{groups.running} running, {groups.finished} finished"
            yield "groups", f"{in_flight}: {parts}; a step takes {groups.problems_per_step}"
        yield "staleness", _staleness(status)
    if status.speed is not None:
        rates = f"{status.speed.generated_per_s:,.0f} generated, {status.speed.trained_per_s:,.0f} trained"
        yield "tokens/s", f"{rates} (last {status.speed.steps} steps)"
    if status.last_step or status.evaluations:
        yield "reward", _reward(status)
    if "hardware/memory_gb" in status.last_step:
        yield "memory", f"a trainer rank took {status.last_step['hardware/memory_gb']:.2f} GB at most"


def _trainer(speed: Speed) -> str:
    causes = {"groups": "for groups", "bound": "for the staleness bound", "device": "for the device"}
    percents = {cause: round(100 * share) for cause, share in speed.trainer_waits.items()}
    parts = [f"{causes.get(cause, cause)} {percent}%" for cause, percent in percents.items() if percent]
    total = sum(percents.values())  # of what is shown, so that it adds up
    return f"waits {total}% of the time" + (f": {', '.join(parts)}" if parts else "")


def _staleness(status: RunStatus) -> str:
    bound = "no bound" if status.staleness is None else f"bound {status.staleness}"
    if status.has_exact_lag:
        bound = "exact lag"
    text = f"{bound}; engines serve version {status.loaded_version}, the trainer has {status.version}"
    step = status.last_step
    if {"staleness/mean", "staleness/max"} <= step.keys():
        text += f"; last step mean {step['staleness/mean']:.2f}, max {step['staleness/max']:.0f}"
    return text


def _reward(status: RunStatus) -> str:
    parts = []
    step = status.last_step
    if {"reward/trained_mean", "step"} <= step.keys():
        parts.append(f"{step['reward/trained_mean']:.3f} in step {step['step']:.0f}")
    for suite, (version, accuracy) in status.evaluations.items():
        parts.append(f"{suite} {accuracy:.3f} at version {version}")
    return " · ".join(parts)


def _processes(status: RunStatus, most: int) -> RenderableType:
    """Draw a row for each process, of many for those that have ended or were restarted; without empty columns."""
    in_trouble_first = sorted(status.processes, key=lambda process: (process.state == RUNS, -process.restarts))
    shown = [process for process in status.processes if process in in_trouble_first[:most]]
    rows = [_row(process, status.time) for process in shown]
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = rows[0] if rows else {}
    columns = [name for name in names if any(row[name] != UNKNOWN for row in rows)]
    for name in columns:
        table.add_column(name, no_wrap=True, justify="left" if name in LEFT else "right")
    for row in rows:
        table.add_row(*(Text(row[name]) for name in columns))
    left_out = len(status.processes) - len(shown)
    if left_out:
        return Group(table, Text(f"… and {left_out} more processes", style="dim"))
    return table


def _row(process: ProcessStatus, at: float) -> dict[str, str]:
    return {
        "role": process.role,
        "node": process.node,
        "pid": str(process.pid or UNKNOWN),
        "state": UNKNOWN if process.state == RUNS else process.state,
        "up": UNKNOWN if process.since is None else _seconds(at - process.since),
        "restarts": UNKNOWN if not process.restarts else str(process.restarts),
        "version": _known(process.version),
        "open": _known(process.open_requests),
        "slots": UNKNOWN if process.slots is None else f"{process.running}/{process.slots}",
        "waiting": _known(process.waiting),
        "cache": (
            UNKNOWN
            if process.cache_tokens is None or not process.cache_capacity
            else f"{process.cache_tokens / process.cache_capacity:.0%}"
        ),
        "memory": UNKNOWN if process.memory_bytes is None else f"{process.memory_bytes / 1e9:.2f} GB",
    }


def _known(value: object) -> str:
    return UNKNOWN if value is None else str(value)


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
