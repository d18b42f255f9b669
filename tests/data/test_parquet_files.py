"""Parquet files of arl's own."""

from pathlib import Path

import pyarrow as pa
import pytest

from arl.data.parquet_files import read_parquet, write_parquet
from arl.errors import DataError

TABLE = pa.table({"token": pa.array(range(1000), pa.int32())})


def test_a_path_is_never_taken_for_the_address_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("s3:bucket/rows.parquet")
    path.parent.mkdir()
    write_parquet(TABLE, path)
    assert read_parquet(path, TABLE.schema, "write it again") == TABLE


def test_a_changed_bit_of_a_page_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(TABLE, path)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_parquet(path, TABLE.schema, "write it again")
