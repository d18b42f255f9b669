"""Measure how dense the code is: tokens per line of code.

    python -m tests.air [NUMBER]      or `just air`

prints it for all of arl/, kernels/ and cli.py, beside what we aim at, and the NUMBER files with the most tokens a
line. Blank lines, comments and docstrings do not count.
"""

import ast
import io
import sys
import tokenize
from dataclasses import dataclass

from tests.test_architecture import ROOT, sources

TOKENS_PER_LINE = 7.5
NOISE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Air:
    """Counts of one file, or of several."""

    lines: int
    tokens: int

    @property
    def tokens_per_line(self) -> float:
        return self.tokens / max(1, self.lines)

    def __str__(self) -> str:
        return f"{self.tokens_per_line:6.1f} {self.lines:12d}"


def measure(text: str) -> Air:
    """Count the lines, tokens and tuple assignments of one file."""
    tree = ast.parse(text)
    docstrings = _docstring_lines(tree)
    lines: set[int] = set()
    tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        first = token.start[0]
        last = token.end[0]
        if token.type not in NOISE and first not in docstrings:
            tokens += 1
            lines.update(range(first, last + 1))
    return Air(len(lines), tokens)


def _docstring_lines(tree: ast.AST) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            assert node.end_lineno is not None
            lines.update(range(node.lineno, node.end_lineno + 1))
    return lines


def main(number: int) -> None:
    files = {path: measure(path.read_text()) for path in [*sources(), ROOT / "cli.py"]}
    whole = Air(
        lines=sum(count.lines for count in files.values()),
        tokens=sum(count.tokens for count in files.values()),
    )
    print("tokens/line  lines of code")
    print(f"{whole}  in all; aim: {TOKENS_PER_LINE}")
    worst = sorted(files, key=lambda path: files[path].tokens_per_line, reverse=True)
    for path in worst[:number]:
        print(f"{files[path]}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
