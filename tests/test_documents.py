"""Check the names in README and docs: every file, metric and recipe field that they mention exists."""

import re
from pathlib import Path

import pytest

from arl.metrics.names import METRICS
from tests.test_architecture import ROOT

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
