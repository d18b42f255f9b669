"""Columns of jsonl and parquet files become problems, as the recipe maps them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arl.config.recipe import Data
from arl.data.problems import load_problems
from arl.errors import DataError
from arl.types import Problem

NESTED = [
    {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{i} + 1?"}],
        "reward_model": {"ground_truth": str(i + 1), "style": "rule"},
        "level": i,
    }
    for i in range(6)
]


def parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def training(**data: Any) -> list[Problem]:
    return load_problems(Data(eval_fraction=1e-9, **data), seed=0).training


@pytest.mark.parametrize("write", [parquet, jsonl])
def test_columns_are_mapped_also_inside_structs_and_the_others_become_metadata(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path / f"p.{write.__name__}", NESTED)
    problems = training(path=path, columns={"prompt": "messages", "answer": "reward_model.ground_truth"})
    assert [problem.answer for problem in problems] == ["1", "2", "3", "4", "5", "6"]
    assert problems[2].prompt == NESTED[2]["messages"]
    assert problems[2].metadata["level"] == 2


def test_all_files_of_a_glob_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    jsonl(tmp_path / "b.jsonl", [{"prompt": "second"}])
    parquet(tmp_path / "c.parquet", [{"prompt": "third"}])
    jsonl(tmp_path / "a.jsonl", [{"prompt": "first"}])
    assert [problem.prompt for problem in training(path=f"{tmp_path}/*")] == ["first", "second", "third"]


@pytest.mark.parametrize("name", ["p.json", "p.jsonl"])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_file_of_one_array_is_read_whatever_its_suffix(tmp_path: Path, name: str, indent: int | None) -> None:
    path = tmp_path / name
    rows = [{"prompt": f"{i} + 1?", "tests": [{"input": i}]} for i in range(3)]
    path.write_text(json.dumps(rows, indent=indent))
    assert [problem.prompt for problem in training(path=str(path))] == ["0 + 1?", "1 + 1?", "2 + 1?"]
    path.write_text(json.dumps([*rows, {"question": "?"}], indent=indent))
    with pytest.raises(DataError, match=rf"{name} row 4: no column prompt"):
        training(path=str(path))


def test_an_array_inside_an_object_is_refused_with_the_command_that_takes_it_out(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"data": NESTED}, indent=1))
    with pytest.raises(DataError, match=r"p\.json:1: not JSON .*`jq -c '\.data\[\]' FILE`"):
        training(path=str(path))


def test_directories_are_taken_as_they_are_called_before_a_pattern_begins(tmp_path: Path) -> None:
    for name in ("set [v2]", "what?", "set v", "deep/er"):
        (tmp_path / name).mkdir(parents=True)
        jsonl(tmp_path / name / "p.jsonl", [{"prompt": name}])
    for pattern in ("set [v2]/*.jsonl", "what?/[p].jsonl", "set [v]/p.jsonl", "de*/**/*.jsonl"):
        (problem,) = training(path=f"{tmp_path}/{pattern}")
        assert problem.prompt == {"set [v]/p.jsonl": "set v", "de*/**/*.jsonl": "deep/er"}.get(
            pattern, pattern.partition("/")[0]
        )
    with pytest.raises(DataError, match=r"matches no file; looked in .*/set \[v2\]; .*\[\[\] for a bracket"):
        training(path=f"{tmp_path}/set [v2]/q[1]*.jsonl")


def test_a_template_takes_columns_and_keeps_braces_that_are_text(tmp_path: Path) -> None:
    path = parquet(tmp_path / "p.parquet", [{"question": "1 + 1?", "extra": {"unit": "cm"}, "answer": "2", "n": 4}])
    template = "{question} In {extra.unit}, {n} digits.\nPut the answer in \\boxed{{}}."
    (problem,) = training(path=path, template=template)
    assert problem.prompt == "1 + 1? In cm, 4 digits.\nPut the answer in \\boxed{}."
    assert problem.answer == "2"
    assert problem.metadata["question"] == "1 + 1?"


CHAT = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
ROW = {"question": "1 + 1?", "answer": "2", "extra": {"unit": "cm"}, "chat": CHAT}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({}, "no column prompt, which data.columns.prompt names .it has question, answer, extra, chat, extra.unit"),
        ({"columns": {"prompt": "question", "answer": "anwser"}}, "no column anwser, which data.columns.answer names"),
        ({"template": "{question} {extra.unti}"}, "no column extra.unti, .*did you mean extra.unit"),
        ({"template": "{extra}"}, "column extra is {'unit': 'cm'}, and must be text or a number"),
        ({"columns": {"prompt": "chat"}}, "column chat ends with the assistant's answer"),
        ({"columns": {"prompt": "extra"}}, "column extra is .* and must be text or a list of chat messages"),
    ],
)
def test_a_column_that_is_missing_or_something_else_is_named_with_file_and_row(
    tmp_path: Path, data: dict[str, Any], complaint: str
) -> None:
    path = parquet(tmp_path / "p.parquet", [ROW])
    with pytest.raises(DataError, match=rf"p\.parquet row 1: {complaint}"):
        training(path=path, **data)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("p.parquet", b"PAR1 nonsense", "p.parquet: cannot be read as Parquet"),
        ("p.jsonl", b"\xff\xfe{}", "cannot be read as text.*iconv -f UTF-16"),
        ("p.csv", b"a,b", "p.csv is not .jsonl, .json, .parquet.*read_csv"),
        ("p.jsonl.gz", b"", "p.jsonl.gz is not .*gunzip --keep"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_even_where_malformed_rows_are_left_out(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        training(path=str(tmp_path / name), malformed="skip")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("absent.jsonl", r"there is no file .*absent\.jsonl; .* has here\.jsonl"),
        ("absent/x.jsonl", "nor a directory"),
        ("*.parquet", "matches no file"),
        (".", "is a directory; give a file, or a glob"),
    ],
)
def test_files_that_are_not_there_are_named(tmp_path: Path, spec: str, complaint: str) -> None:
    jsonl(tmp_path / "here.jsonl", [ROW])
    with pytest.raises(DataError, match=f"data.path .*{complaint}"):
        training(path=f"{tmp_path}/{spec}")
