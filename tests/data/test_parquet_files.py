"""Parquet files are read as they were written, in any codec, and a damaged one is named."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arl.data.table_rows import parquet_rows, write_parquet
from arl.errors import DataError

TABLE = pa.table({"token": pa.array(range(1000), pa.int32())})


def test_a_path_is_never_taken_for_the_address_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("s3:bucket/rows.parquet")
    path.parent.mkdir()
    write_parquet(TABLE, path)
    assert pq.read_table(path.resolve()) == TABLE


@pytest.mark.parametrize("damage", ["a changed bit", "cut short"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(TABLE, path)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content if damage == "a changed bit" else content[:-100])
    with pytest.raises(DataError, match=r"rows\.parquet: cannot be read as Parquet"):
        list(parquet_rows(path, "data.path"))
