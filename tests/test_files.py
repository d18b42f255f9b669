"""Files and values of somebody else are read, or refused with the documented error."""

import contextlib
import os
import socket
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.files import decode_json, decode_msgpack, open_regular, read_regular


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_regular(file, most_bytes=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(file, most_bytes=4)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", most_bytes=1) == b"1"


def _no_file(folder: Path, kind: str) -> Path:
    path = folder / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif kind == "loop":
        path.symlink_to(path)
    return path


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "loop", "nothing"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=kind):
        open_regular(_no_file(tmp_path, kind))
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a" * 300, "/dev/zero"])
def test_a_name_that_no_file_can_have_and_a_device_are_errors_of_the_system(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"\[Errno"):
        read_regular(tmp_path / name, most_bytes=10)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_decode_error(data: bytes) -> None:
    for decode in (decode_json, decode_msgpack):
        with contextlib.suppress(msgspec.DecodeError):
            decode(data)


def test_deep_nesting_is_a_decode_error() -> None:
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        decode_json(b"[" * 100_000)
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        decode_msgpack(b"\x91" * 100_000)


def test_text_that_is_no_utf_8_is_a_decode_error() -> None:
    with pytest.raises(msgspec.DecodeError, match="UTF-8"):
        decode_json(b'"\xff"')
    with pytest.raises(msgspec.DecodeError, match="UTF-8"):
        decode_msgpack(b"\xa1\xff")
