"""Write what arl.launch.slurm.step_runner reads: a command with its environment, for its owner's eyes only."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from arl.launch.base import Command

SILENCE = 120.0  # seconds without a word of the controller, after which a process ends itself


def write_step_file(
    directory: Path,
    role: str,
    command: Command,
    environment: Mapping[str, str],
    address: str,
) -> Path:
    """Write a file that only its owner can read, and return its path.

    Args:
        directory: exists, on a path that all nodes share.
        environment: of the process, without the command's own.
        address: on which it listens; its collectives use the interface that has it.
    """
    # Its name is new, because a network file system may remember for a while that another one has been removed.
    file = directory / f"{role}-{secrets.token_hex(4)}.json"
    step = {
        "argv": list(command.argv),
        "environment": {**os.environ, **command.environment, **command.secrets, **environment},
        "directory": os.getcwd(),
        "address": address,
        "silence": SILENCE,
    }
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(step, stream)
        stream.flush()
        os.fsync(stream.fileno())  # so that a network file system has it before the step begins
    return file.absolute()
