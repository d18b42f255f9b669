"""Make one small recorded run, and damage copies of its files: by bytes, by values of its tables, by what they are."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from arl.config.recipe_file import load_recipe
from arl.metrics.console import ConsoleDisplay
from arl.run.train import train
from tests.fuzz.damage import FLOATS, INTEGERS, TEXTS, damage_bytes, damage_value
from tests.fuzz.irregular import TOO_LONG

RECIPE = """\
name: small
world: virtual
model:
  tiny: {hidden_size: 16, layers: 1, heads: 2, intermediate_size: 32}
data: {task: running_checksum, options: {size: 100}}
rollout: {problems_per_step: 2, group_size: 2, staleness: 2, max_new_tokens: 8}
train: {steps: 3, minibatches: 1, learning_rate: 1.5e-4}
engine: {slots: 4, stream_interval: 4}
eval: {problems: 2}
"""

LARGE = 1 << 22  # bytes; a second damage is only of what can be read


def silent() -> ConsoleDisplay:
    """Return a display that shows nothing."""
    return ConsoleDisplay(Console(file=io.StringIO()))


def record_run(folder: Path) -> Path:
    """Train a small run in virtual time, and return its directory."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    summary = train(load_recipe(recipe, [f"output.directory={folder / 'runs'}"]), silent())
    return Path(summary.directory)


def damage_run(random: Random, run: Path, files: list[str]) -> str:
    """Damage one to two of the files of a run, each once, and say which and how."""
    told = []
    damaged = set()
    for _ in range(random.choice((1, 1, 1, 2))):
        file = run / random.choice(files)
        if file in damaged or not os.path.lexists(file) or (os.path.isfile(file) and file.stat().st_size > LARGE):
            continue  # reading a damaged table without arl's bounds could take all memory
        damaged.add(file)
        # What a recipe may say is tried by an edge of its own.
        damage = of_kind if file.name == "recipe.yaml" or file.is_dir() else random.choice(DAMAGES)
        if file.suffix == ".parquet" and random.random() < 0.7:
            damage = damage_rows
        elif file.suffix in {".json", ".jsonl"} and random.random() < 0.5:
            damage = damage_json
        damage(random, file)
        told.append(f"{damage.__name__} {file.name}")
    return ", ".join(told)


def of_bytes(random: Random, file: Path) -> None:
    """Damage the content."""
    if file.is_file():
        file.write_bytes(damage_bytes(random, file.read_bytes()))


def of_kind(random: Random, file: Path) -> None:
    """Put something else in the place of the file."""
    content = file.read_bytes() if file.is_file() else b""
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink()
    kind = random.randrange(7)
    if kind == 0:
        os.mkfifo(file)
    elif kind == 1:
        file.mkdir()
    elif kind == 2:
        file.symlink_to(file.name)  # to itself
    elif kind == 3:
        file.symlink_to(random.choice(("/dev/zero", "/dev/stdin", "missing", "..", TOO_LONG)))
    elif kind == 4:
        with file.open("wb") as sparse:
            sparse.truncate(random.choice((0, 1, 2**20, 2**33)))
    elif kind == 5:
        file.with_name(f"{random.choice(('000001', '000000', '1', 'x'))}{file.suffix}").write_bytes(content)


def damage_json(random: Random, file: Path) -> None:
    """Damage values of a JSON file, or of one of its lines."""
    if not file.is_file():
        return
    has_lines = file.suffix == ".jsonl" or file.name == "trace.json"  # whose reader takes one event a line
    lines = file.read_bytes().splitlines() if has_lines else [file.read_bytes()]
    if not lines:
        return
    place = random.randrange(len(lines))
    try:
        value = json.loads(lines[place].rstrip(b","))
        lines[place] = json.dumps(damage_value(random, value)).encode()
    except (ValueError, TypeError, RecursionError):  # it was damaged before, or JSON cannot say it
        lines[place] = damage_bytes(random, lines[place])
    file.write_bytes(b"\n".join(lines))


def damage_rows(random: Random, file: Path) -> None:
    """Damage rows, values or types of a table."""
    try:
        table = pq.read_table(file)
    except (OSError, ValueError, pa.ArrowException):
        return  # it was damaged before
    rows = table.to_pylist()
    for _ in range(random.choice((1, 1, 2, 3))):
        random.choice(DAMAGES_OF_ROWS)(random, rows)
    schema = table.schema
    if random.random() < 0.15:
        schema = _other_type(random, schema)
    try:
        damaged = pa.Table.from_pylist(rows, schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # the type has no such value
        damaged = pa.Table.from_pylist(table.to_pylist(), table.schema).slice(1)
    if random.random() < 0.1:
        damaged = damaged.drop_columns(random.choice(damaged.column_names))
    pq.write_table(damaged, file, row_group_size=random.choice((3, 1_000)))


def _other_type(random: Random, schema: pa.Schema) -> pa.Schema:
    number = random.randrange(len(schema))
    kinds = (pa.int8(), pa.int64(), pa.float32(), pa.string(), pa.large_string(), pa.list_(pa.int64()), pa.null())
    return schema.set(number, pa.field(schema.field(number).name, random.choice(kinds)))


Rows = list[dict[str, Any]]


def _lose_row(random: Random, rows: Rows) -> None:
    begin = random.randrange(len(rows) + 1)
    del rows[begin : begin + random.choice((1, 1, 2, 100))]


def _double_row(random: Random, rows: Rows) -> None:
    if rows:
        chosen = random.choices(rows, k=random.choice((1, 2, 4)))
        rows += [dict(row) for row in chosen]


def _swap_rows(random: Random, rows: Rows) -> None:
    random.shuffle(rows)


def _change_value(random: Random, rows: Rows) -> None:
    for row in random.sample(rows, min(len(rows), random.choice((1, 1, 3)))):
        name = random.choice(list(row))
        row[name] = _other_value(random, row[name])


def _change_everywhere(random: Random, rows: Rows) -> None:
    if rows:
        name = random.choice(list(rows[0]))
        value = _other_value(random, rows[0][name])
        for row in rows:
            row[name] = value


def _other_value(random: Random, value: Any) -> Any:
    if isinstance(value, list) and value and random.random() < 0.8:
        return _other_list(random, value)
    if isinstance(value, int) and not isinstance(value, bool) and random.random() < 0.5:
        return value + random.choice((-1, 1, 10, 10**12))
    return random.choice((None, random.choice(FLOATS), random.choice(INTEGERS), random.choice(TEXTS), [], True))


def _other_list(random: Random, value: list[Any]) -> list[Any]:
    changed = list(value)
    place = random.randrange(len(changed))
    kind = random.randrange(4)
    if kind == 0:
        del changed[place]
    elif kind == 1:
        changed.append(changed[place])
    elif kind == 2 and not isinstance(changed[place], tuple):
        changed[place] = None
    elif isinstance(changed[place], bool):
        changed[place] = not changed[place]
    elif isinstance(changed[place], float):
        changed[place] = random.choice(FLOATS)
    elif isinstance(changed[place], int):
        changed[place] = random.choice((-1, -2, 0, 1, 5, 10**6, 2**31 - 1, -(2**31)))
    elif isinstance(changed[place], tuple):
        changed[place] = (changed[place][0], random.choice((None, *FLOATS)))
    return changed


DAMAGES: tuple[Callable[[Random, Path], None], ...] = (of_bytes, of_bytes, of_kind)
DAMAGES_OF_ROWS: tuple[Callable[[Random, Rows], None], ...] = (
    _lose_row,
    _double_row,
    _swap_rows,
    _change_value,
    _change_value,
    _change_value,
    _change_everywhere,
)
