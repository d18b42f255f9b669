"""Hand secrets to a process on another node by a file that only this user reads, where commands cross a network.

written_secrets ─► <directory>/… (mode 0600) ─► read_secrets on the node ─► removed
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path


@contextlib.contextmanager
def written_secrets(directory: Path, variables: Mapping[str, str]) -> Iterator[Path | None]:
    """Yield a file that holds `variables` until the block ends; None: there are none.

    Args:
        directory: which every node sees under the same path. It is one of arl.launch.private_directory, because this
            process may be killed within the block.
    """
    if not variables:
        yield None
        return
    path = directory.absolute() / secrets.token_hex(8)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(dict(variables), file)
            file.flush()
            os.fsync(file.fileno())  # a network file system shows it to other machines then
        yield path
    finally:
        path.unlink(missing_ok=True)


def read_secrets(path: str | None) -> Mapping[str, str]:
    """Return the variables of a file that `written_secrets` yielded."""
    if path is None:
        return {}
    variables: Mapping[str, str] = json.loads(Path(path).read_text())
    return variables
