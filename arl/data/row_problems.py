"""Make problems of the rows of files, by the columns and the template that the recipe gives.

row ─► columns.prompt, or the template with its fields ─► prompt
   ├─► columns.answer                                 ─► answer
   └─► all other columns                              ─► metadata
"""

import difflib
import itertools
import json
import math
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from arl.config.data_section import Columns, fill_template, template_fields
from arl.data.table_rows import Row, column_names, read_rows, value_at
from arl.errors import DataError, short_message
from arl.types import Problem

DEFAULT_ANSWER = "answer"


class Question(Struct, eq=False, gc=False):
    """Hold a question. It equals itself in another spelling: see `question_key`.

    The hash is that of the letters and digits of the key. Of an ASCII text these are its own, so that most keys, which
    take eight times as long, are never made.
    """

    text: str
    letters: int = 0

    def __post_init__(self) -> None:
        text = self.text if self.text.isascii() else question_key(self.text)
        self.letters = hash(text.encode("utf-8", "surrogatepass").translate(_LOWER, _NO_LETTERS))

    def __hash__(self) -> int:
        return self.letters

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Question) and question_key(self.text) == question_key(other.text)


class Candidate(Struct, frozen=True, gc=False):
    """Hold a problem on its way into a split."""

    problem: Problem
    question: Question
    place: str  # where it comes from, for messages

    def __str__(self) -> str:
        """Return the place and the beginning of the question, on one line."""
        prompt = self.problem.prompt
        text = prompt[-1]["content"] if isinstance(prompt, list) else prompt
        return f'{self.place} "{textwrap.shorten(text, 80, placeholder="…")}"'


class MalformedRow(Exception):
    """Report that a row is no problem: it lacks a column, or a column holds something else."""


class RowReader:
    """Turn rows into problems.

    Args:
        columns: what the file's columns hold.
        template: the prompt, with {column} fields; None: columns.prompt is the prompt.
    """

    def __init__(self, columns: Columns, template: str | None) -> None:
        self._columns = columns
        self._template = template
        self._fields = [] if template is None else template_fields(template)
        self._used = {columns.prompt if template is None else None, columns.answer or DEFAULT_ANSWER}

    def candidate(self, row: Row) -> Candidate:
        """Return the problem of a row.

        Raises:
            MalformedRow: says the column and what is wrong with it.
        """
        if row.malformed:
            raise MalformedRow(row.malformed)
        prompt: str | list[dict[str, str]]
        if self._template is None:
            column = self._columns.prompt
            prompt = prompt_of(self._required(row, column, "data.columns.prompt"), column)
            if isinstance(prompt, list) and prompt[-1]["role"] == "assistant":
                raise MalformedRow(f"column {column} ends with the assistant's answer, which the policy would see")
            question = prompt_question(prompt)
        else:
            texts = {name: _text(self._required(row, name, "data.template"), name) for name in self._fields}
            prompt = fill_template(self._template, texts)
            question = " ".join(texts.values())
        metadata = {name: value for name, value in row.values.items() if name not in self._used}
        problem = Problem(prompt, self._answer(row), metadata)
        return Candidate(problem, Question(question), row.place)

    def _answer(self, row: Row) -> str:
        column = self._columns.answer
        if column is None:
            value = row.values.get(DEFAULT_ANSWER)
            return "" if value is None else _as_answer(value, DEFAULT_ANSWER)
        value = self._required(row, column, "data.columns.answer")
        if value is None:
            raise MalformedRow(f"column {column} is null, and must hold the answer")
        return _as_answer(value, column)

    def _required(self, row: Row, column: str, setting: str) -> Any:
        try:
            return value_at(row.values, column)
        except KeyError as error:
            names = column_names(row.values)
            close = difflib.get_close_matches(column, names, n=1)
            meant = f"did you mean {close[0]}?" if close else f"it has {', '.join(names[:12])}"
            if len(row.values) == 1 and isinstance(row.values[names[0]], list):
                meant += f"; `jq -c '.{names[0]}[]' FILE` writes a list of rows as lines"
            raise MalformedRow(f"no column {column}, which {setting} names ({meant})") from error


def file_candidates(
    files: Sequence[Path],
    reader: RowReader,
    field: str,
    skip_malformed: bool = False,
) -> tuple[list[Candidate], list[str]]:
    """Read the problems of files. Returns them with a note if malformed rows were left out.

    Args:
        field: the recipe field that names the files, for messages.
        skip_malformed: leave out rows that are no problems, instead of raising.

    Raises:
        DataError: a file cannot be read, a row is malformed, or no row is a problem.
    """
    candidates: list[Candidate] = []
    malformed = []
    for row in itertools.chain.from_iterable(read_rows(file, field) for file in files):
        try:
            candidates.append(reader.candidate(row))
        except MalformedRow as error:
            malformed.append(short_message(f"{row.place}: {error}"))
            if not skip_malformed:
                raise DataError(
                    f"{malformed[0]}. Correct the row or the recipe, or leave such rows out with data.malformed: skip"
                ) from error
    count = len(candidates) + len(malformed)
    if not candidates:
        first = f"none of its {count:,} rows is a problem; the first: {malformed[0]}" if malformed else "is empty"
        raise DataError(f"{field} {files[0]}: {first}; give a file with one problem in each row")
    if not malformed:
        return candidates, []
    return candidates, [f"{len(malformed):,} of {count:,} rows of {field} are malformed and left out: {malformed[0]}"]


def prompt_of(value: Any, column: str) -> str | list[dict[str, str]]:
    """Return the value of a column as a prompt: text, or chat messages with role and content alone.

    Raises:
        MalformedRow: it is neither, or nothing is asked.
    """
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value and all(_is_message(part) for part in value):
        messages = [{"role": part["role"], "content": part["content"]} for part in value]
        if any(message["content"].strip() for message in messages):
            return messages
    raise MalformedRow(
        f"column {column} is {shortened(value)}, and must be text or a list of chat messages (role and content, both "
        "text), and not empty"
    )


def _is_message(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    role = part.get("role")
    return isinstance(role, str) and bool(role.strip()) and isinstance(part.get("content"), str)


def _text(value: Any, column: str) -> str:
    """Return a value as it stands in a prompt."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    raise MalformedRow(f"column {column} is {shortened(value)}, and must be text or a number, not empty")


def _as_answer(value: Any, column: str) -> str:
    """Return an answer as text: what is not text already, as JSON writes it."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:  # bytes, NaN, an infinity: only parquet has them
        raise MalformedRow(f"column {column} is {shortened(value)}, and must be what JSON can hold") from error


def shortened(value: Any) -> str:
    """Write a value as Python does, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


_PLAIN = tuple(zip("‐‑‒–—−‘’ʼ", "------'''", strict=True))  # dashes for a minus, and apostrophes
_LOWER = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz")
_NO_LETTERS = bytes(code for code in range(128) if not chr(code).isalnum())
_MARKS = re.compile(
    r"""
    [\\$"“”„«»`.,;:?!]     # looked for first, because most characters are none of these
    (?:
        (?<=\\) [()\[\]]   # where mathematics begins and ends
      | (?<=[$"“”„«»`])
      | (?<=[.,;:]) (?!\d) # a digit may follow a decimal point or the comma of thousands
      | (?<=\?) \?* !*
      | (?<=[^\W\d_]!) !*  # behind a letter; behind a number or a bracket it is a factorial
    )
    """,
    re.VERBOSE,
)


def question_key(text: str) -> str:
    """Return the text by which equal questions are found.

    >>> question_key("What is  2.5 + 3?") == question_key("what is $2.5 + 3$")
    True
    >>> question_key("What is 2.5 + 3?") == question_key("What is 25 + 3?")
    False
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        for mark, plain in _PLAIN:
            text = text.replace(mark, plain)
    return " ".join(_MARKS.sub(" ", text.casefold()).split())


def prompt_question(prompt: str | list[dict[str, Any]]) -> str:
    """Return the question of a prompt; of chat messages, what the user says, or all of it."""
    if isinstance(prompt, str):
        return prompt
    said = [str(part["content"]) for part in prompt if part["role"] == "user"]
    return " ".join(said or [str(part["content"]) for part in prompt])
