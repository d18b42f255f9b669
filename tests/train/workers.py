"""Starts real trainer ranks, as the launcher does."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

from arl.child import PARENT


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def started(
    environment: dict[str, str], ranks: int, parent: int | None = None
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """`ranks` workers; killed at the end if they still live."""
    shared = {
        **os.environ,
        **environment,
        PARENT: str(parent or os.getpid()),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_WAIT_POLICY": "PASSIVE",
        "CUDA_VISIBLE_DEVICES": "",
    }
    processes = [
        subprocess.Popen([sys.executable, "-m", "arl.train.worker"], env={**shared, "RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
