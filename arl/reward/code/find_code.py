"""Find the program in a response.

after </think> ─► last fenced block of Python ─► last fenced block ─► the whole response, if it is Python
"""

import ast
import re
import textwrap

MAX_CODE = 100_000  # characters
_FENCE = re.compile(r"^[ \t]*```[ \t]*(?P<language>[\w+#.-]*)[^\n]*\n(?P<code>.*?)(?:^[ \t]*```|\Z)", re.M | re.S)
_PYTHON = ("python", "python3", "py")


def find_code(text: str, head: str = "") -> str | None:
    """Return the program of a response, or None.

    Args:
        head: the beginning of a function, where a response may go on with it; it is put before a mere body.

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
    if head:
        code = _completed(head, code, is_bare=not chosen)
    return code if chosen or (code.strip() and _is_python(code)) else None


def _completed(head: str, code: str, is_bare: bool) -> str:
    """Return a program of a function's head and what goes on with it, or brings the whole function again."""
    entries = re.findall(r"^def (\w+)", head, re.M)
    if re.search(rf"^\s*def {entries[-1]}\b", code, re.M):  # the imports and helpers of the head may be missing
        return f"{head[: head.rindex(f'def {entries[-1]}')]}\n{textwrap.dedent(code)}"
    if is_bare:  # a base model goes on after the end of the function
        code = re.split(r"\n(?=[^\s#])", code.lstrip("\n"), maxsplit=1)[0] + "\n"
    if code[:1].strip():
        code = textwrap.indent(code, "    ")
    return head + code


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
