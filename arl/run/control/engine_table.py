"""Draw the engines of a run as a table."""

from collections.abc import Sequence

from rich.table import Table

from arl.run.control.control_messages import EngineStatus


def engine_table(engines: Sequence[EngineStatus]) -> Table:
    """Return a table with one row for each engine."""
    table = Table(box=None, pad_edge=False)
    for heading in ("engine", "node", "pid", "state", "version", "open", "since"):
        table.add_column(heading, justify="left" if heading in ("engine", "node", "state") else "right")
    for engine in engines:
        serves = engine.version is not None
        table.add_row(
            engine.name,
            engine.node,
            "" if engine.pid is None else str(engine.pid),
            engine.state,
            str(engine.version) if serves else "",
            str(engine.open) if serves else "",
            _elapsed(engine.seconds) if serves else "",
        )
    return table


def _elapsed(seconds: float) -> str:
    """Write a duration.

    >>> _elapsed(59.6), _elapsed(3_723)
    ('0:01:00', '1:02:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
