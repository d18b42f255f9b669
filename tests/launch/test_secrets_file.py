"""Secrets reach another node by a file that nobody else reads, and that is gone afterwards."""

from pathlib import Path

import pytest

from arl.launch.secrets_file import read_secrets, written_secrets


def test_the_file_is_the_owners_alone_and_is_gone_after_the_block(tmp_path: Path) -> None:
    secrets = {"ARL_RUN_KEY": "0123abcd"}
    with written_secrets(tmp_path, secrets) as path:
        assert path is not None
        assert path.is_absolute()
        assert path.stat().st_mode & 0o777 == 0o600
        assert read_secrets(str(path)) == secrets
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_gone_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), written_secrets(tmp_path, {"KEY": "1"}):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_without_secrets_there_is_no_file(tmp_path: Path) -> None:
    with written_secrets(tmp_path, {}) as path:
        assert path is None
        assert read_secrets(None) == {}
        assert list(tmp_path.iterdir()) == []
