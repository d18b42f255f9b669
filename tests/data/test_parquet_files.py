"""Parquet files of arl's own are read as written; files of others may be of any codec, but not of any size."""

import contextlib
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arl.data.jsonl import LONGEST_LINE
from arl.data.parquet_files import LEAST_VALUES, read_parquet, write_parquet
from arl.data.parquet_pages import sum_pages
from arl.data.parquet_rows import parquet_rows
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


def test_rows_are_bounded_by_the_size_of_the_file_alone(tmp_path: Path) -> None:
    table = pa.table({"token": pa.array(range(LEAST_VALUES + 1), pa.int32())})
    write_parquet(table, tmp_path / "rows.parquet")
    assert read_parquet(tmp_path / "rows.parquet", table.schema, "write it again") == table


def repeated(text: str, count: int) -> pa.Array:
    """Make a column in which one text stands once, however often it occurs."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [text])


OFFSETS = pa.array(range(1001), pa.int32())
LARGE = {
    "a text in every row": (repeated("a" * 200_000, 1000), r"its texts have more than [67]\d,\d\d\d,\d\d\d bytes"),
    "a text in every list": (pa.ListArray.from_arrays(OFFSETS, repeated("a" * 3_000_000, 1000)), "its texts have more"),
    "a text in every struct": (pa.StructArray.from_arrays([repeated("a" * 200_000, 1000)], ["a"]), "its texts have"),
    "a text in every map": (
        pa.MapArray.from_arrays(OFFSETS, pa.array(["k"] * 1000), pa.array(["a" * 200_000] * 1000)),
        "its texts have more",
    ),
    "one long text": (pa.array(["a", "a" * (LONGEST_LINE + 1)]), r"row 2: has 16,000,001 bytes, and 16,000,000 is"),
    "wide bytes": (pa.array([b"a" * 200_000] * 1000, pa.binary(200_000)), "has 20000.... bytes when it is decoded"),
    "long lists": (
        pa.array([[0] * (LEAST_VALUES // 2)]),
        f"has {3 * (LEAST_VALUES // 2) + 1} values, more than .* bytes can hold",
    ),
    "many rows": (pa.nulls(4 * LEAST_VALUES, pa.int8()), f"has {4 * LEAST_VALUES} rows, more than .* bytes can hold"),
}


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "brotli"])
@pytest.mark.parametrize("what", LARGE)
def test_a_small_file_of_others_that_stands_for_much_is_refused(tmp_path: Path, what: str, codec: str) -> None:
    column, complaint = LARGE[what]
    path = tmp_path / "p.parquet"
    count = pa.nulls(len(column), pa.string())
    pq.write_table(pa.table({"prompt": count, "other": column}), path, compression=codec)
    with pytest.raises(DataError, match=rf"data\.path .*p\.parquet.*{complaint}"):
        for _ in parquet_rows(path, "data.path"):
            pass


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "brotli"])
def test_a_large_file_of_others_is_read_in_any_codec_and_any_row_groups(tmp_path: Path, codec: str) -> None:
    rows = [{"prompt": f"What is {i} + {i}?", "system": "Be brief. " * 1000} for i in range(3_000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet", compression=codec, row_group_size=7)
    assert list(parquet_rows(tmp_path / "p.parquet", "data.path")) == rows


def test_texts_in_every_kind_of_column_come_back_as_they_were(tmp_path: Path) -> None:
    long = "a" * 9_000_000
    columns = {
        "text": pa.array([long] * 3, pa.large_string()),
        "list": pa.array([["b", "c"]] * 3, pa.list_(pa.string(), 2)),
        "map": pa.array([[("k" * 9_000, "v")]] * 3, pa.map_(pa.string(), pa.string())),
        "bytes": pa.array([b"\xff"] * 3, pa.large_binary()),
    }
    pq.write_table(pa.table(columns), tmp_path / "p.parquet")
    row = {"text": long, "list": ["b", "c"], "map": [{"key": "k" * 9_000, "value": "v"}], "bytes": b"\xff"}
    assert list(parquet_rows(tmp_path / "p.parquet", "data.path")) == [row] * 3


def _footer_integer(number: int, length: int) -> bytes:
    """Write a number as Thrift does in a footer, with as many bytes as another one takes."""
    number <<= 1
    parts = [(number >> (7 * place)) & 127 for place in range(length)]
    return bytes(part | 128 for part in parts[:-1]) + bytes(parts[-1:])


def test_a_footer_that_makes_a_file_look_small_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    column = pa.array([b"a" * 1_000_000] * 100)
    pq.write_table(pa.table({"prompt": column}), path, compression="brotli", use_dictionary=False)
    (size,) = {pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size}
    length = ((2 * size).bit_length() + 6) // 7
    honest = path.read_bytes()
    path.write_bytes(honest.replace(_footer_integer(size, length), _footer_integer(1000, length)))
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 1000
    with pytest.raises(DataError, match=r"its pages have 100\d{6} bytes when they are decoded"):
        next(parquet_rows(path, "data.path"))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "brotli"])
def test_the_headers_of_pages_count_the_values_of_a_column(tmp_path: Path, version: str, codec: str) -> None:
    path = tmp_path / "p.parquet"
    columns = {"text": [f"{i}" for i in range(5000)], "list": [[i, None] for i in range(5000)], "null": [None] * 5000}
    pq.write_table(
        pa.table(columns),
        path,
        compression=codec,
        data_page_version=version,
        data_page_size=1000,
        row_group_size=700,
        write_page_checksum=True,
    )
    metadata = pq.read_metadata(path)
    with path.open("rb") as file:
        for group in range(metadata.num_row_groups):
            for place in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(place)
                sums = sum_pages(file, chunk)
                assert sums.num_values == chunk.num_values
                assert sums.num_bytes <= chunk.total_uncompressed_size
    assert len(list(parquet_rows(path, "data.path"))) == 5000


@pytest.mark.parametrize("seed", range(30))
def test_damaged_headers_of_pages_are_refused_or_read(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"prompt": [f"{i}" for i in range(100)]}), path, compression="none")
    random = Random(seed)
    content = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(0)
    for place in random.sample(range(4, 60), 3):
        content[place] = random.choice((0, 0x18, 0x1C, 0x19, 0xFF, random.randrange(256)))
    with path.open("w+b") as file:
        file.write(content)
        file.flush()
        with contextlib.suppress(ValueError):
            sum_pages(file, chunk)
