"""Print scores: one table for each protocol, with a row for each model, and what differs between the tables.

Scores of unlike protocols are never put side by side, because they cannot be compared.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arl.errors import InputError
from arl.run.evaluation.model_identity import short_name
from arl.run.evaluation.outputs import SCORES, Scored, read_scores
from arl.run.evaluation.protocol import Protocol, differing_fields
from arl.run.evaluation.scores import Estimate

FILE_WIDTH = 120  # columns, where the output is no terminal
LONGEST_VALUE = 60  # characters of a value that differs


def find_scores(directories: Iterable[Path]) -> list[Scored]:
    """Read every scores.json in the directories and below them.

    Raises:
        InputError: one of them has none, or is no directory.
    """
    found: list[Scored] = []
    for directory in directories:
        if not directory.is_dir():
            raise InputError(f"{directory}: is no directory; give one that `arl eval` has written, or one above")
        files = sorted(directory.rglob(SCORES))
        if not files:
            raise InputError(f"{directory}: no {SCORES} in it or below; `arl eval` writes one when a suite is finished")
        for file in files:
            found += read_scores(file)
    return found


def print_scores(scores: Sequence[Scored], console: Console) -> None:
    """Print a table for each protocol, and then what differs between protocols of one suite."""
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    groups: dict[str, list[Scored]] = {}
    for scored in scores:
        groups.setdefault(scored.fingerprint, []).append(scored)
    for fingerprint, group in groups.items():
        protocol = group[0].protocol
        title = f"{protocol.suite}: {protocol.sampling}; {protocol.grader}; protocol {fingerprint}"
        console.print(title, markup=False, soft_wrap=True)
        console.print(_table(group))
    protocols = [group[0].protocol for group in groups.values()]
    for line in _differences(protocols):
        console.print(line, markup=False, soft_wrap=True)


def _table(group: Sequence[Scored]) -> Table:
    """Lay out the scores of one protocol, in percent, each above its 95 % interval."""
    n = group[0].protocol.samples
    ks = sorted({k for scored in group for k in scored.score.pass_at if k > 1})
    has_errors = any(scored.score.errors for scored in group)
    table = Table(box=SIMPLE)
    table.add_column("model", overflow="fold")
    scores = [f"avg@{n}", *(f"pass@{k}" for k in ks), *([f"maj@{n}"] if n > 1 else [])]
    for column in [*scores, "tokens", "cut off", *(["errors"] if has_errors else [])]:
        table.add_column(column, justify="right", no_wrap=True)
    for scored in group:
        table.add_row(*_row(scored, ks, has_errors))
    return table


def _row(scored: Scored, ks: Sequence[int], has_errors: bool) -> Iterator[str]:
    score = scored.score
    yield escape(short_name(scored.model.name))
    yield _percent(score.average)
    for k in ks:
        yield _percent(score.pass_at[k]) if k in score.pass_at else ""
    if score.samples > 1:
        yield _percent(score.majority)
    lengths = score.lengths
    yield f"{lengths.mean:,.1f}\np50 {lengths.p50:,.0f}, p95 {lengths.p95:,.0f}"
    yield f"{score.truncated:.1%}"
    if has_errors:
        yield str(score.errors)


def _percent(score: Estimate) -> str:
    return f"{100 * score.value:.1f}\n{100 * score.low:.1f}–{100 * score.high:.1f}"


def _differences(protocols: Sequence[Protocol]) -> Iterator[str]:
    """Say in what each further protocol of a suite differs from the suite's first one."""
    first: dict[str, Protocol] = {}
    for protocol in protocols:
        reference = first.setdefault(protocol.suite, protocol)
        if reference is protocol:
            continue
        yield f"{protocol.suite}: [{protocol.fingerprint}] is not comparable with [{reference.fingerprint}]:"
        fields = msgspec.to_builtins(reference), msgspec.to_builtins(protocol)
        for field, before, now in differing_fields(*fields):
            yield f"  {field}: {_short(before)} → {_short(now)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
