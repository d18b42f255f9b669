"""A lock is a regular file of its own: what else has its name is refused at once, and nothing is written there."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from arl.launch.file_lock import open_lock, try_lock

NOT_A_LOCK: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to(path.with_name("precious")),
    "dangling link": lambda path: path.symlink_to(path.with_name("absent")),
    "FIFO": os.mkfifo,
    "directory": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/null"),
}


def put(name: str, path: Path) -> Path:
    """Put what is no lock at `path`; return a file that a link there names."""
    precious = path.with_name("precious")
    precious.write_text("keep me")
    NOT_A_LOCK[name](path)
    return precious


@pytest.mark.parametrize("name", NOT_A_LOCK)
def test_what_is_no_regular_file_is_refused_and_what_a_link_names_is_left_alone(name: str, tmp_path: Path) -> None:
    precious = put(name, tmp_path / "lock")
    with pytest.raises(OSError, match="lock"):
        open_lock(tmp_path / "lock")
    assert precious.read_text() == "keep me"
    assert not (tmp_path / "absent").exists()


def test_a_lock_keeps_what_is_in_it_and_others_out(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("somebody's note")
    with open_lock(tmp_path / "lock") as held, open_lock(tmp_path / "lock") as other:
        assert try_lock(held)
        assert not try_lock(other)
    assert (tmp_path / "lock").read_text() == "somebody's note"
