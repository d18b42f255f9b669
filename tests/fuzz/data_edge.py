"""Try data files: what the checks before a run accept must reach a reward worker and come back as it was.

rows ─► values damaged ─► jsonl or parquet ─► bytes damaged ─► preflight, as `arl train --dry-run`; or `arl sft`
"""

import contextlib
import gzip
import json
import os
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from arl.config.model_section import TinyModel
from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.frames import FrameReader, frame
from arl.models.tiny import make_tiny_model
from arl.reward.messages import RewardCall
from arl.run.preflight import preflight
from arl.train.sft import read_pairs
from arl.types import Problem, Response
from tests.fuzz.damage import TEXTS, damage_bytes, damage_value
from tests.fuzz.trials import Draw, Edge, Trial

TEMPLATE = (
    "{%- for message in messages -%}<{{ message.role }}>{{ message.content }}</{{ message.role }}>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<assistant>{%- endif -%}"
)
TASTES: tuple[dict[str, Any], ...] = (  # settings of the section `data`
    {},
    {"columns": {"prompt": "messages", "answer": "reward.truth"}},
    {"columns": {"answer": "answer"}},
    {"template": "{prompt} {level}"},
    {"template": "{reward.truth}"},
    {"deduplicate": False},
)
LITERALS = (
    *(b"NaN", b"-Infinity", b"1e400", b"-0", b"1E-999", b"18446744073709551616", b"9" * 4400, b"0x1", b"01", b"+1"),
    *(b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\u0000"', b'"\xe2\x80\xa8"', b'"\xc2\x85"', b'"\x1c"', b'"\xed\xa0\x80"'),
    *(b'{"a":1,"a":2}', b"[" * 63 + b"]" * 63, b"[" * 5000, b"[" * 900 + b"]" * 900, b'{"":' * 400 + b"1" + b"}" * 400),
    *(
        b"true",
        b"null",
        b"[]",
        b"{}",
        b"[null]",
        b"\xff",
        b"\0",
        b"'x'",
        b"//x",
        b'"\\x41"',
        b'"' + b"a" * 20_000 + b'"',
    ),
)
SEPARATORS = (b"\n", b"\r\n", b"\r", b"\n\n", b"\n \t\n", b"\n\0\n", "\u2028".encode(), b"\x0c", b"\n\xef\xbb\xbf", b"")
BEGINNINGS = (b"", b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\n\n", b"[", b"\0", b"#!\n", b"PAR1")


@contextlib.contextmanager
def prepare(folder: Path) -> Iterator[Draw]:
    """Make a model whose tokenizer has a chat template, and draw files for it."""
    model = folder / "model"
    shape = TinyModel(hidden_size=32, layers=1, heads=2, intermediate_size=32)
    make_tiny_model(shape, string.printable, seed=1, directory=model)
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))

    def draw(random: Random) -> Trial:
        path = folder / f"data{random.choice(('.jsonl', '.jsonl', '.json', '.parquet', '.parquet'))}"
        _remove(path)
        what = random.choice((_write_odd_file, *[_write_rows] * 9))(random, path)
        if path.suffix != ".parquet" and random.random() < 0.2:
            return Trial(f"sft, {what}", lambda: _try_pairs(path))
        data = _settings(random, str(path))
        return Trial(f"{data}, {what}", lambda: _try_recipe(str(model), data))

    yield draw


def _settings(random: Random, path: str) -> dict[str, Any]:
    data: dict[str, Any] = {"path": path, "malformed": random.choice(("fail", "skip")), **random.choice(TASTES)}
    if random.random() < 0.5:
        data |= {"max_prompt_tokens": 64}
    if random.random() < 0.1:
        data |= {"eval_path": path}
    if random.random() < 0.05:
        data |= {"path": random.choice((random.choice(TEXTS), f"{path}/x", f"{path}\0", f"{path[:-3]}*", "~nobody/x"))}
    return data


def _try_recipe(model: str, data: dict[str, Any]) -> None:
    sections = {
        "name": "fuzz",
        "model": {"path": model},
        "reward": {"function": "arl.reward.math.grader:score"},
        "rollout": {"max_new_tokens": 16},
        "eval": {"problems": 0},
        "data": data,
    }
    try:
        recipe = Recipe.model_validate(sections)
    except ValidationError as error:  # arl.config.recipe_file says so with the line
        raise RecipeError(str(error)) from error
    for problem in preflight(recipe).training:
        check_round_trip(problem)


def _try_pairs(path: Path) -> None:
    for prompt, response in read_pairs(path):
        check_round_trip(Problem(prompt, response))


def check_round_trip(problem: Problem) -> None:
    """Send a problem as the pool does, and write and read its answer as a trajectory file has it."""
    sent = RewardCall(1, 0, problem, Response(problem.answer))
    (body,) = FrameReader().feed(frame(sent))
    got = msgspec.msgpack.decode(body, type=RewardCall)
    assert repr(got) == repr(sent)  # NaN is not equal to itself
    assert pa.array([problem.answer, problem.id]).to_pylist() == [problem.answer, problem.id]


# ---- files


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _write_rows(random: Random, path: Path) -> str:
    rows = [_row(number) for number in range(random.choice((1, 2, 5, 40)))]
    if random.random() < 0.6:
        rows = damage_value(random, rows)
    content = _parquet(random, rows) if path.suffix == ".parquet" else _jsonl(random, rows)
    if random.random() < 0.4:
        content = damage_bytes(random, content)
    path.write_bytes(content)
    return f"{path.suffix} {len(content)} bytes {content[:300]!r}"


def _row(number: int) -> dict[str, Any]:
    question = f"What is {number} + {number}?"
    return {
        "prompt": question,
        "response": str(2 * number),
        "messages": [{"role": "user", "content": question}],
        "answer": number,
        "reward": {"truth": str(2 * number), "weights": [0.5, None]},
        "level": number / 2,
    }


def _jsonl(random: Random, rows: Any) -> bytes:
    lines = [_json(random, row) for row in (rows if isinstance(rows, list) else [rows])]
    if random.random() < 0.4:
        at = random.randrange(len(lines)) if lines else 0
        lines[at : at + 1] = [_with_literal(random, lines[at] if lines else b"{}")]
    separator = random.choice((b"\n", b"\n", b"\n", random.choice(SEPARATORS)))
    return random.choice(BEGINNINGS) + separator.join(lines) + random.choice((b"", b"\n", b"\r\n", b"\0"))


def _json(random: Random, row: Any) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
    except ValueError:  # an integer of thousands of digits
        return b'{"prompt": "x", "n": ' + b"9" * 5000 + b"}"


def _with_literal(random: Random, line: bytes) -> bytes:
    name = random.choice((b'"answer"', b'"prompt"', b'"more"', b'"level"', b'"response"', b'""'))
    return b"{" + name + b": " + random.choice(LITERALS) + b", " + line.removeprefix(b"{")


def _parquet(random: Random, rows: Any) -> bytes:
    try:
        return _parquet_of(random, pa.Table.from_pylist(rows))
    except (pa.ArrowException, AttributeError, LookupError, TypeError, OverflowError, ValueError):  # no table has these
        return _parquet_of(random, pa.Table.from_pylist([_row(number) for number in range(3)]))


def _parquet_of(random: Random, table: pa.Table) -> bytes:
    for name, column in random.sample(list(_columns(len(table)).items()), random.randint(0, 3)):
        if name in table.column_names:
            table = table.drop_columns(name)
        table = table.append_column(name, column)
    if table.num_columns and random.random() < 0.1:
        table = table.append_column(table.column_names[0], table.column(0))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression=random.choice(("none", "snappy", "zstd")))
    return bytes(sink.getvalue())


def _columns(count: int) -> dict[str, pa.Array]:
    """Return columns of types that JSON lacks."""
    of_bytes = pa.array([b"\xff"] * count)
    bad_text = pa.Array.from_buffers(pa.string(), count, of_bytes.buffers())
    inner = pa.array([2**62] * count)
    return {
        "prompt": bad_text,
        "answer": pa.array([float("nan")] * count),
        "when": pa.array([2**50] * count, pa.timestamp("s")),
        "day": pa.array([3] * count, pa.date32()),
        "exact": pa.array([None] * count, pa.decimal256(70, 3)),
        "large": pa.array([2**64 - 1] * count, pa.uint64()),
        "image": of_bytes,
        "map": pa.array([[("a", 1), ("a", 2)]] * count, pa.map_(pa.string(), pa.int64())),
        "class": pa.array(["x"] * count).dictionary_encode(),
        "span": pa.array([2**60] * count, pa.duration("ns")),
        "level": pa.StructArray.from_arrays([inner, inner], ["a", "a"]),
        "half": pa.array([None] * count, pa.float16()),
        "view": pa.array([None] * count, pa.null()),
    }


def _write_odd_file(random: Random, path: Path) -> str:
    name, make = random.choice(list(_ODD.items()))
    make(path)
    return f"{path.suffix} {name}"


def _write_repeated_text(path: Path) -> None:
    """Write a file of a kB whose rows have a gigabyte."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), ["x" * 1_000_000])
    with path.open("wb") as file:
        pq.write_table(pa.table({"prompt": column}), file, compression="zstd")


def _write_repeated_numbers(path: Path) -> None:
    """Write a file of a kB with a list of millions."""
    column = pa.array([[0] * 4_000_000])
    with path.open("wb") as file:
        pq.write_table(pa.table({"prompt": ["x"], "answer": column}), file, compression="zstd")


_ODD: dict[str, Callable[[Path], object]] = {
    "repeated text": _write_repeated_text,
    "repeated numbers": _write_repeated_numbers,
    "FIFO": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "endless link": lambda path: path.symlink_to(path),
    "broken link": lambda path: path.symlink_to("absent"),
    "memory": lambda path: path.symlink_to("/proc/self/mem"),
    "nothing": Path.touch,
    "gzip": lambda path: path.write_bytes(gzip.compress(b'{"prompt": "x"}')),
    "UTF-16": lambda path: path.write_text('{"prompt": "x"}', encoding="utf-16"),
    "long line": lambda path: path.write_bytes(b'{"prompt": "' + b"x" * 17_000_000),
    "one value": lambda path: path.write_bytes(b'["prompt"]'),
    "nested": lambda path: path.write_bytes(b"[" * 1_000_000),
    "many keys": lambda path: path.write_text(json.dumps({f"key {number}": number for number in range(100_000)})),
}

DATA = Edge(prepare, trials=120)
