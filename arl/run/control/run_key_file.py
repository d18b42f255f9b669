"""Keep the key of a run in RUN/secrets/run.key while it runs, so that `arl engines join` can read it."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from arl.errors import InputError
from arl.launch.tls import CERTIFICATE
from arl.launch.trust import FOLDER, RunTrust
from arl.run.control.control_folder import read_private, write_private

KEY = "run.key"
KEY_TEXT = re.compile(r"[!-~]{1,256}")  # what may stand in a header of HTTP


@contextlib.contextmanager
def key_file(run: Path, key: str) -> Iterator[None]:
    """Write the key, for this user alone, and remove it at the end. Other secrets may lie beside it."""
    folder = run / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    file = folder / KEY
    write_private(file, key.encode())
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds other secrets, whose owner removes them
            folder.rmdir()


def read_trust(run: Path) -> RunTrust:
    """Read the secrets of a run: its key, and where its certificate is if it has one.

    Raises:
        InputError: the run has no key, or it is not for this user.
    """
    folder = run.absolute() / FOLDER
    file = folder / KEY
    try:
        key = read_private(file).decode()
        if not KEY_TEXT.fullmatch(key):
            raise ValueError("it holds no key of a run")
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error}); join as the user who has started the run") from error
    has_certificate = os.path.exists(folder / CERTIFICATE)
    return RunTrust(key, folder if has_certificate else None)
