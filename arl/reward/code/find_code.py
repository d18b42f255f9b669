"""Find the program in a response.

after </think> ─► last fenced block of Python ─► last fenced block ─► the whole response, if it is Python
"""

import ast
import re

MAX_CODE = 100_000  # characters
_FENCE = re.compile(r"^[ \t]*```[ \t]*(?P<language>[\w+#.-]*)[^\n]*\n(?P<code>.*?)(?:^[ \t]*```|\Z)", re.M | re.S)
_PYTHON = ("python", "python3", "py")


def find_code(text: str) -> str | None:
    """Return the program of a response, or None.

    >>> find_code("So:\\n```python\\nprint(1)\\n```\\nIt prints 1.")
    'print(1)\\n'
    """
    _, closed, rest = text.rpartition("</think>")
    if not closed and "<think>" in text:
        return None
    blocks = [(found["language"].lower(), found["code"]) for found in _FENCE.finditer(rest)]
    python = [code for language, code in blocks if language in _PYTHON]
    chosen = python or [code for _, code in blocks]
    code = chosen[-1] if chosen else rest
    if len(code) > MAX_CODE:
        return None
    return code if chosen or (code.strip() and _is_python(code)) else None


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
