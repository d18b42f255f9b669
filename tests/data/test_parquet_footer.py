"""Footers of Parquet files for which pyarrow ends the process, instead of raising: arl refuses them before."""

import base64
import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import encryption

from arl.data.parquet_files import open_foreign, write_parquet
from arl.data.parquet_footer import COLUMNS, METADATA, ROW_GROUPS, TAIL
from arl.data.thrift import STRUCT, ThriftReader
from arl.errors import DataError

LISTS = pa.array([["x", None], []], pa.list_(pa.string()))
TABLE = pa.table({"a": pa.array([1, None]), "b": LISTS})


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    write_parquet(TABLE, tmp_path / "good.parquet")
    return (tmp_path / "good.parquet").read_bytes()


def footer_of(file: bytes) -> bytes:
    length = int.from_bytes(file[-TAIL:-4], "little")
    return file[-TAIL - length : -TAIL]


def with_footer(file: bytes, footer: bytes) -> bytes:
    content = file[: -TAIL - len(footer_of(file))]
    return content + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def read(path: Path) -> pa.Table:
    with open_foreign(path, "data.path damaged.parquet") as (file, _):
        return file.read()


def test_whatever_bit_is_flipped_the_file_is_read_or_refused(good: bytes, tmp_path: Path) -> None:
    footer = footer_of(good)
    damaged = tmp_path / "damaged.parquet"
    refused = 0
    for place in range(len(footer)):
        for bit in range(8):
            changed = bytearray(footer)
            changed[place] ^= 1 << bit
            damaged.write_bytes(with_footer(good, bytes(changed)))
            try:
                read(damaged)
            except DataError:
                refused += 1
    assert 0 < refused < 8 * len(footer)


def without_second_column(footer: bytes) -> bytes:
    """Take a column out of the only row group, and not out of the schema."""
    stream = io.BytesIO(footer)
    reader = ThriftReader(stream, "the footer")
    begins = []
    for _ in reader.inside(ROW_GROUPS):
        for _ in reader.inside(COLUMNS):
            begins.append(stream.tell())
            reader.skip(STRUCT)
        break
    stream.seek(begins[1])
    reader.skip(STRUCT)
    two, one = (count << 4 | STRUCT for count in (2, 1))
    assert footer[begins[0] - 1] == two
    first = footer[begins[0] : begins[1]]
    return footer[: begins[0] - 1] + bytes([one]) + first + footer[stream.tell() :]


def of_another_kind(footer: bytes) -> bytes:
    """Let the metadata of a column be no struct."""
    stream = io.BytesIO(footer)
    reader = ThriftReader(stream, "the footer")
    for _ in reader.inside(ROW_GROUPS):
        for _ in reader.inside(COLUMNS):
            for field, _ in reader.fields():
                if field == METADATA:
                    place = stream.tell() - 1
                    return footer[:place] + bytes([footer[place] & 0xF0 | 5]) + footer[place + 1 :]
                reader.skip(6)
    raise AssertionError("it has metadata")


@pytest.mark.parametrize("damage", [without_second_column, of_another_kind])
def test_a_row_group_that_lacks_what_its_schema_says_is_refused(
    good: bytes, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(with_footer(good, damage(footer_of(good))))
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read(damaged)


class OpenKeys(encryption.KmsClient):  # type: ignore[misc]  # pyarrow has no types of it
    """Keep no key secret."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def test_a_file_with_an_encrypted_column_is_refused_by_its_name(tmp_path: Path) -> None:
    keys = encryption.CryptoFactory(lambda _: OpenKeys())
    how = encryption.EncryptionConfiguration(footer_key="f", column_keys={"k": ["a"]}, plaintext_footer=True)
    properties = keys.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    path = tmp_path / "encrypted.parquet"
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE)
    with pytest.raises(DataError, match="its column a is encrypted"):
        read(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_struct_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        ThriftReader(io.BytesIO(data), "the footer").skip(STRUCT)


def test_lists_without_end_and_values_that_are_nested_too_deeply_are_refused_at_once() -> None:
    endless = b"\x19\xf7" + b"\xff" * 9 + b"\x01"  # a list of 2^64 numbers of eight bytes each
    nested = b"\x1c" * 100
    lists = b"\x19" * 100
    for data, why in ((endless, "text of"), (nested, "nested too deeply"), (lists, "nested too deeply")):
        with pytest.raises(ValueError, match=why):
            ThriftReader(io.BytesIO(data), "the footer").skip(STRUCT)
