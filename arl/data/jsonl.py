"""Read files that hold one JSON value on each line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arl.errors import DataError


def read_jsonl(path: Path, *, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the place, as in `problems.jsonl:3`, and the value of each line that is not blank.

    Args:
        path: the file.
        field: how messages name it, as in "data.path".

    Raises:
        DataError: the file cannot be read as UTF-8, or a line is not JSON.
    """
    for place, line in numbered_lines(path, field=field):
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{place}: not JSON ({error}); each line is one JSON object") from error
        yield place, value


def numbered_lines(path: Path, *, field: str) -> Iterator[tuple[str, str]]:
    """Yield the place, as in `problems.jsonl:3`, and the text of each line that is not blank.

    Raises:
        DataError: the file cannot be read as UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{field} {path}: cannot be read as text ({error}); give one JSON object a line") from error
    # Not splitlines(), which also cuts at U+2028 and U+0085: JSON allows both inside a string.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line
