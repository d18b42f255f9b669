"""Measure how dense the code is: tokens per line of code, and tuple assignments per 1,000 lines.

    python -m tests.air [NUMBER]      or `just air`

prints both for all of arl/, kernels/ and cli.py, beside what we aim at, and the NUMBER files with the most tokens a
line. Blank lines, comments and docstrings do not count.
"""

import ast
import io
import sys
import tokenize
from dataclasses import dataclass

from tests.test_architecture import ROOT, sources

TOKENS_PER_LINE = 7.5
TUPLES_PER_1000 = 2.0
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
    tuples: int

    @property
    def tokens_per_line(self) -> float:
        return self.tokens / max(1, self.lines)

    @property
    def tuples_per_1000(self) -> float:
        return 1000 * self.tuples / max(1, self.lines)

    def __str__(self) -> str:
        return f"{self.tokens_per_line:6.1f} {self.tuples_per_1000:8.1f} {self.lines:7d}"


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
    tuples = sum(_packs_several(node) for node in ast.walk(tree))
    return Air(len(lines), tokens, tuples)


def _docstring_lines(tree: ast.AST) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            assert node.end_lineno is not None
            lines.update(range(node.lineno, node.end_lineno + 1))
    return lines


def _packs_several(node: ast.AST) -> bool:
    """Tell whether a statement is `a, b = c, d`. Taking apart one value, as in `a, b = pair`, is no packing."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return any(isinstance(target, ast.Tuple) for target in node.targets)


def main(number: int) -> None:
    files = {path: measure(path.read_text()) for path in [*sources(), ROOT / "cli.py"]}
    counts = files.values()
    whole = Air(
        lines=sum(count.lines for count in counts),
        tokens=sum(count.tokens for count in counts),
        tuples=sum(count.tuples for count in counts),
    )
    print("tokens/line  tuples/1000 lines  lines of code")
    print(f"{whole}  in all; aim: {TOKENS_PER_LINE} and {TUPLES_PER_1000}")
    worst = sorted(files, key=lambda path: files[path].tokens_per_line, reverse=True)
    for path in worst[:number]:
        print(f"{files[path]}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
