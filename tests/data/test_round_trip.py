"""What a data file holds reaches a reward worker as it was."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arl.config.recipe import Data
from arl.data.problems import load_problems
from arl.reward.worker import FrameReader, RewardCall, frame
from arl.types import Problem, Response

ROW: dict[str, Any] = {
    "prompt": "a\u2028b\u0085 \U0001f600\0",
    "answer": " 2\r\n",
    "numbers": [-(2**63), 2**64 - 1, 0.1, -1e300, True, None],
    "": {"nested": [{"": []}, "\x7f"], "prompt": {}},
}


def loaded(path: Path) -> list[Problem]:
    return load_problems(Data(path=str(path), eval_fraction=1e-9, deduplicate=False), seed=0).training


@pytest.mark.parametrize("separator", ["\n", "\r\n", "\n \r\n\n"])
def test_a_line_of_json_comes_to_the_reward_function_as_it_was(tmp_path: Path, separator: str) -> None:
    lines = [json.dumps(ROW, ensure_ascii=ascii_only) for ascii_only in (True, False)]
    (tmp_path / "p.jsonl").write_bytes(separator.join(lines).encode())
    problems = loaded(tmp_path / "p.jsonl")
    assert [sent(problem) for problem in problems] == problems
    for problem in problems:
        assert {**problem.metadata, "prompt": problem.prompt, "answer": problem.answer} == ROW


def test_values_that_json_lacks_come_from_parquet_as_text_and_maps_as_lists(tmp_path: Path) -> None:
    columns = {
        "prompt": pa.array(["a\u2028b"]),
        "answer": pa.array([2**64 - 1], pa.uint64()),
        "time": pa.array([0], pa.timestamp("ns", tz="UTC")),
        "late": pa.array([2**50], pa.timestamp("ms")),
        "exact": pa.array([None], pa.decimal128(5, 2)),
        "days": pa.array([[1]], pa.list_(pa.date32())),
        "map": pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64())),
        "kind": pa.array(["x"]).dictionary_encode(),
        "image": pa.array([b"\xff"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "p.parquet")
    (problem,) = loaded(tmp_path / "p.parquet")
    assert sent(problem) == problem
    assert problem.answer == "18446744073709551615"
    assert isinstance(problem.metadata.pop("late"), str)  # no date of Python's is so late
    assert problem.metadata == {
        "time": "1970-01-01 00:00:00.000000000Z",
        "exact": None,
        "days": ["1970-01-02"],
        "map": [{"key": "k", "value": 1}, {"key": "k", "value": 2}],
        "kind": "x",
        "image": b"\xff",
    }


def sent(problem: Problem) -> Problem:
    """Return a problem as the reward function gets it."""
    (body,) = FrameReader().feed(frame(RewardCall(1, "m:f", problem, Response("x"))))
    return msgspec.msgpack.decode(body, type=RewardCall).problem
