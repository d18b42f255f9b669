"""Check the names in README and docs: every file, metric and recipe field that they mention exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from arl.metrics.names import METRICS
from tests.test_architecture import ROOT, sources

DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
ROOMS = "|".join(sorted(path.name for path in (ROOT / "arl").iterdir() if path.is_dir() and path.name.isidentifier()))
FILE = re.compile(rf"`((?:arl|kernels|tests|docs|recipes|\.ci|{ROOMS})/[\w./-]*)(?![\w./<-])")  # or a metric
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
FIELDS = set(re.findall(r"^\| `([\w.]+)`", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE))
SECTIONS = "|".join(sorted({field.partition(".")[0] for field in FIELDS if "." in field}))
FIELD = re.compile(rf"`((?:{SECTIONS})\.[a-z_]+)(?![\w.]|\()")
SUFFIXES = {"json", "jsonl", "py", "md", "yaml", "parquet", "msgpack", "safetensors"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_metric_and_field_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text()
    for name in FILE.findall(text):
        places = (ROOT / name, ROOT / "arl" / name)
        assert name in METRICS or any(place.exists() for place in places), name
    for link in LINK.findall(text):
        assert (document.parent / link).exists(), link
    for name in FIELD.findall(text):
        if name.rpartition(".")[2] not in SUFFIXES:
            assert name in FIELDS or any(field.startswith(f"{name}.") for field in FIELDS), name


def test_every_message_that_the_page_on_gpus_quotes_is_one_of_arls() -> None:
    """A quotation is cut at each `…`, which stands for a value; every part of it is text of one string of the code."""
    page = (ROOT / "docs" / "gpu.md").read_text()
    table = page.partition("| what is said | why |\n|---|---|\n")[2].partition("\n\n")[0]
    texts = "\n".join(text for file in sources() for text in _texts(ast.parse(file.read_text())))
    quoted = [message for row in table.splitlines() for message in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(quoted) > 10
    for message in quoted:
        for part in re.split(r"…|/dev/shm", message):
            assert part.strip() in texts, f"{part.strip()!r} of {message!r}"


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield every string of a file; of a formatted one each piece between two values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
