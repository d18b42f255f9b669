"""Print scores: one table for each protocol, with a row for each model, and what differs between the tables.

Scores of unlike protocols are never put side by side, because they cannot be compared.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arl.errors import InputError
from arl.run.evaluation.results import SCORES, Fields, Scored, differing_fields, read_scores, short_name
from arl.run.evaluation.scores import Estimate

FILE_WIDTH = 120  # columns, where the output is no terminal
MAX_VALUE_WIDTH = 60  # characters of a value that differs


def find_scores(directories: Iterable[Path]) -> list[Scored]:
    """Read every scores.json in the directories and below them.

    Raises:
        InputError: one of them has none, or is not a directory.
    """
    found: list[Scored] = []
    for directory in directories:
        if not directory.is_dir():
            raise InputError(f"{directory}: is not a directory; give one that `arl eval` has written, or one above")
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
    for name, group in groups.items():
        protocol = group[0].protocol
        title = f"{protocol['suite']}: {_sampling(protocol)}; {protocol['grader']}; protocol {name}"
        console.print(title, markup=False, soft_wrap=True)
        console.print(_table(group))
    for line in _differences([group[0] for group in groups.values()]):
        console.print(line, markup=False, soft_wrap=True)


def _sampling(protocol: Fields) -> str:
    parts = [f"at most {protocol['max_new_tokens']} tokens"]
    if protocol["temperature"] == 0:
        return f"greedy, {parts[0]}"
    if protocol["top_k"] is not None:
        parts.insert(0, f"top-k {protocol['top_k']}")
    if protocol["top_p"] < 1:
        parts.insert(0, f"top-p {protocol['top_p']:g}")
    samples = f"{protocol['samples']} x {protocol['problems']} problems"
    return ", ".join([samples, f"temperature {protocol['temperature']:g}", *parts])


def _table(group: Sequence[Scored]) -> Table:
    """Lay out the scores of one protocol, in percent, each above its 95 % interval."""
    n = group[0].score.samples
    ks = sorted({k for scored in group for k in scored.score.pass_at if k > 1})
    columns = [f"avg@{n}", *(f"pass@{k}" for k in ks), *([f"maj@{n}"] if n > 1 else []), "tokens", "cut off", "errors"]
    table = Table("model", box=SIMPLE)
    table.columns[0].overflow = "fold"
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for scored in group:
        score = scored.score
        passes = [_percent(score.pass_at[k]) if k in score.pass_at else "" for k in ks]
        majority = [_percent(score.majority)] if n > 1 else []
        length = f"{score.lengths.mean:,.1f}\np50 {score.lengths.p50:,.0f}, p95 {score.lengths.p95:,.0f}"
        ends = [length, f"{score.truncated:.1%}", str(score.errors)]
        table.add_row(escape(short_name(scored.model["name"])), _percent(score.average), *passes, *majority, *ends)
    return table


def _percent(score: Estimate) -> str:
    return f"{100 * score.value:.1f}\n{100 * score.low:.1f}–{100 * score.high:.1f}"


def _differences(scores: Sequence[Scored]) -> Iterator[str]:
    """Say in what each further protocol of a suite differs from the suite's first one."""
    first: dict[str, Scored] = {}
    for scored in scores:
        suite = scored.score.suite
        reference = first.setdefault(suite, scored)
        if reference is scored:
            continue
        yield f"{suite}: [{scored.fingerprint}] is not comparable with [{reference.fingerprint}]:"
        for field, *values in differing_fields(reference.protocol, scored.protocol):
            before, now = [text if len(text) <= MAX_VALUE_WIDTH else f"{text[:59]}…" for text in map(str, values)]
            yield f"  {field}: {before} → {now}"
