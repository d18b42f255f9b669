"""What a run keeps secret is made for it alone, and goes with it."""

import stat
from pathlib import Path

import pytest

from arl.launch.run_secrets import FOLDER, run_secrets


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1"])
def test_the_secrets_of_a_run_that_was_killed_are_gone_when_the_next_one_begins(tmp_path: Path, address: str) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "certificate.pem").write_text("of the run that was killed")
    with run_secrets(tmp_path, [address]) as trust:
        assert trust.certificate is None or "CERTIFICATE" in Path(trust.certificate).read_text()
        assert (trust.certificate is None) == (address == "127.0.0.1")
        assert (folder / "certificate.pem").exists() == (trust.certificate is not None)
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in folder.glob("*"))
    assert not folder.exists()
