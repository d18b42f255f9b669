"""The directory of an evaluation is locked, and what has the name of its lock is never written to."""

from pathlib import Path

import pytest

from arl.errors import InputError
from arl.run.evaluation.outputs import LOCK, locked
from tests.launch.test_file_lock import NOT_A_LOCK, put


def test_two_evaluations_do_not_write_into_one_directory(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InputError, match="another evaluation writes there"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("name", NOT_A_LOCK)
def test_a_lock_that_is_no_regular_file_is_refused(tmp_path: Path, name: str) -> None:
    precious = put(name, tmp_path / LOCK)
    with (
        pytest.raises(InputError, match=r"--output .*\.lock cannot be opened .*; remove what has its name"),
        locked(tmp_path),
    ):
        pass
    assert precious.read_text() == "keep me"
