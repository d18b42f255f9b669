"""A file is replaced as a whole or not at all, and a failure to write says what helps."""

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from arl.errors import DiskError
from arl.launch.disk import writing
from arl.launch.durable import remove_any, replace_file

FULL = Path("/dev/full")  # every write to it fails: no space left


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_whatever_an_earlier_try_has_left(tmp_path: Path, sync: bool) -> None:
    (tmp_path / ".recipe.yaml.partial").write_bytes(b"torn")
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"old")
    replace_file(path, b"new", sync)
    assert os.listdir(tmp_path) == ["recipe.yaml"]
    assert path.read_bytes() == b"new"


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").mkdir()  # no file can take its name
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "recipe.yaml", b"new")
    assert os.listdir(tmp_path) == ["recipe.yaml"]


def test_a_link_is_removed_and_not_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    for name in ("link", "nothing"):
        remove_any(tmp_path / name)
    assert os.listdir(tmp_path) == ["kept"]


def test_a_full_disk_is_told_with_what_is_free_and_what_helps() -> None:
    told = r"/dev/full: .*No space left.* MB are free on /dev: make room there"
    with pytest.raises(DiskError, match=told), writing(FULL), FULL.open("wb", buffering=0) as file:
        file.write(b"1")


def test_a_failure_that_another_library_reports_as_text_is_one_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="No space left"), writing(tmp_path / "model.safetensors"):
        raise SafetensorError('I/O error: Os { code: 28, kind: StorageFull, message: "No space left (os error 28)" }')


def test_what_is_no_failure_of_the_disk_passes(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError, match="header"), writing(tmp_path / "model.safetensors"):
        raise SafetensorError("Error while deserializing header: invalid header")
    with pytest.raises(OSError, match="Interrupted"), writing(tmp_path / "x"):
        raise OSError(errno.EINTR, "Interrupted")
