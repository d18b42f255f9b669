"""A lock keeps other processes out, until its holder ends."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from arl.errors import InputError
from arl.launch.file_lock import is_locked, require_lock, try_lock


def test_a_lock_keeps_what_is_in_its_file_and_others_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    path.write_text("somebody's note")
    with require_lock(path) as held, require_lock(path) as other:
        assert try_lock(held)
        assert not try_lock(other)
        assert is_locked(path)
    assert not is_locked(path)
    assert path.read_text() == "somebody's note"


def test_a_lock_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be opened \(Is a directory\); remove what has its name"):
        require_lock(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_the_file_system_has_no_locks_it_is_said_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def lack(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", lack)
    with require_lock(tmp_path / "lock") as file:
        with pytest.warns(UserWarning, match="its file system has no locks"):
            assert try_lock(file)
        assert not is_locked(tmp_path / "lock")
