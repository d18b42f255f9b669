"""Two evaluations do not write into one directory."""

from pathlib import Path

import pytest

from arl.errors import InputError
from arl.run.evaluation.results import locked


def test_two_evaluations_do_not_write_into_one_directory(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InputError, match="another evaluation writes there"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
