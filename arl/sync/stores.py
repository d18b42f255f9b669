"""Open the stores of torch through which the ranks of a process group find each other: torch's TCPStore.

A store knows no key: on several nodes whoever reaches the network of the run reaches it, as in torch.
"""

import socket
import time
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from arl.launch.network import free_listener

AGAIN_SECONDS = 0.05  # between two attempts to connect


def serve_store(host: str, seconds: float, port: int = 0) -> TCPStore:
    """Open a store, which lasts as long as it is referred to.

    Args:
        host: the only address it listens on; the socket that torch would make listens on all of them.
        seconds: deadline of each wait for the store.
        port: 0 takes a free one.
    """
    listener = socket.create_server((host, port)) if port else free_listener(host)
    listener.listen()
    return TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=seconds),
        master_listen_fd=listener.detach(),
    )


def reach_store(host: str, port: int, seconds: float) -> TCPStore:
    """Connect to a store that another rank serves, as soon as somebody listens there.

    Torch itself would write the frames of its C++ into the log at each attempt.

    Raises:
        RuntimeError: nobody listens there within `seconds`, or there is no such address.
    """
    end = time.monotonic() + seconds
    while True:
        left = max(AGAIN_SECONDS, end - time.monotonic())
        try:
            socket.create_connection((host, port), left).close()
            return TCPStore(host, port, timeout=timedelta(seconds=left))
        except (OSError, ValueError) as error:  # ValueError: no name of any host
            is_over = time.monotonic() + AGAIN_SECONDS >= end
            if is_over or isinstance(error, ValueError):
                raise RuntimeError(f"nobody answers at {host}:{port}: {error}") from error
        time.sleep(AGAIN_SECONDS)
