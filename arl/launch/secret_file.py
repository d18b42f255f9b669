"""Hand a process on another node its secrets by a file in the run's directory, which its owner alone can read.

The arguments and variables of srun, and the calls of Ray, cross the network in the clear.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from arl.launch.durable import sync_to_disk

PREFIX = "secrets-"  # begins the name of the directory of such files, in that of the run


def write_secret_file(directory: Path, role: str, variables: Mapping[str, str]) -> str:
    """Write variables of a process, and return the path of the file, which all nodes see."""
    # Its name is new, because a network file system may remember for a while that another one has been removed.
    file = directory.absolute() / f"{role}-{secrets.token_hex(4)}.json"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        json.dump(dict(variables), stream)
    sync_to_disk(file)  # so that a network file system has it before the process begins
    return str(file)


def take_secret_file(path: str) -> dict[str, str]:
    """Read what `write_secret_file` has written, and remove it."""
    file = Path(path)
    variables: dict[str, str] = json.loads(file.read_text())
    file.unlink()
    return variables
