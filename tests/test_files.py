"""A file is replaced as a whole or not at all, a failure to write says what helps, and a lock keeps others out."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from arl.errors import DiskError
from arl.files import is_locked, remove_any, replace_file, require_lock, try_lock, writing

FULL = Path("/dev/full")  # every write to it fails: no space left


def test_a_file_is_replaced_whatever_an_earlier_try_has_left(tmp_path: Path) -> None:
    (tmp_path / ".recipe.yaml.partial").write_bytes(b"torn")
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"old")
    replace_file(path, b"new")
    assert os.listdir(tmp_path) == ["recipe.yaml"]
    assert path.read_bytes() == b"new"


def test_a_link_is_removed_and_not_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    for name in ("link", "nothing"):
        remove_any(tmp_path / name)
    assert os.listdir(tmp_path) == ["kept"]


def test_a_full_disk_is_reported_with_what_is_free_and_what_helps() -> None:
    reported = r"/dev/full: .*No space left.* MB are free on /dev: make room there"
    with pytest.raises(DiskError, match=reported), writing(FULL), FULL.open("wb", buffering=0) as file:
        file.write(b"1")


def test_failures_of_the_disk_that_another_library_reports_are_told_from_others(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(DiskError, match="No space left"), writing(path):
        raise SafetensorError('I/O error: Os { code: 28, kind: StorageFull, message: "No space left (os error 28)" }')
    with pytest.raises(SafetensorError, match="header"), writing(path):
        raise SafetensorError("Error while deserializing header: invalid header")


def test_a_lock_keeps_what_is_in_its_file_and_others_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    path.write_text("a note")
    with require_lock(path) as held, require_lock(path) as other:
        assert try_lock(held)
        assert not try_lock(other)
        assert is_locked(path)
    assert not is_locked(path)
    assert path.read_text() == "a note"


def test_where_the_file_system_has_no_locks_it_is_said_and_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lack(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", lack)
    path = tmp_path / "lock"
    with require_lock(path) as held:
        assert try_lock(held)
        assert "its file system has no locks (No locks available)" in capsys.readouterr().err
    assert not is_locked(path)
