"""Open the stores of torch through which the ranks of a process group find each other.

one rank    serve_store ─► listens on one address, and beyond loopback behind a gate
the others  reach_store ─► connect, and beyond loopback through a tunnel to the gate       (arl.launch.store_tunnel)
"""

import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import Store, TCPStore

from arl.launch.address import LOOPBACK, free_listener
from arl.launch.child import RUN_KEY
from arl.launch.store_tunnel import StoreGate, StoreTunnel
from arl.launch.tls import CERTIFICATE, client_context, server_context, tls_folder

AGAIN_SECONDS = 0.05  # between two attempts to connect


@dataclass
class StoreEnd:
    """Hold a store as one rank sees it.

    Args:
        store: may be used until the end is closed.
        port: where others reach the store, or its gate.
        relay: carries it beyond loopback.
    """

    store: Store
    port: int
    relay: StoreGate | StoreTunnel | None = None

    def close(self) -> None:
        """Carry nothing more. A store that needs no relay lasts as long as it is referred to."""
        if self.relay is not None:
            self.relay.close()


def serve_store(host: str, seconds: float, port: int = 0) -> StoreEnd:
    """Open a store.

    Args:
        host: the only address it listens on; the socket that torch would make listens on all of them.
        seconds: deadline of each wait for the store.
        port: 0 takes a free one.
    """
    listener = socket.create_server((host, port)) if port else free_listener(host)
    port = listener.getsockname()[1]
    folder = tls_folder(host)
    if folder is None:
        return StoreEnd(_serve(listener, host, seconds), port)
    behind = free_listener(LOOPBACK)
    behind_port: int = behind.getsockname()[1]
    store = _serve(behind, LOOPBACK, seconds)
    listener.listen()
    gate = StoreGate(listener, behind_port, os.environ[RUN_KEY], server_context(folder))
    return StoreEnd(store, port, gate)


def reach_store(host: str, port: int, seconds: float) -> StoreEnd:
    """Connect to a store that another rank serves.

    Raises:
        RuntimeError: nobody answers there, or it knows another run key.
    """
    left = _await_listener(host, port, seconds)
    timeout = timedelta(seconds=left)
    folder = tls_folder(host)
    if folder is None:
        return StoreEnd(TCPStore(host, port, timeout=timeout), port)
    tunnel = StoreTunnel(host, port, os.environ[RUN_KEY], client_context(folder / CERTIFICATE))
    try:
        return StoreEnd(TCPStore(LOOPBACK, tunnel.port, timeout=timeout), port, tunnel)
    except RuntimeError as error:
        tunnel.close()
        raise RuntimeError(f"the store behind {host}:{port} does not answer; it may know another run key") from error


def _await_listener(host: str, port: int, seconds: float) -> float:
    """Wait until somebody listens at an address, and return how many of the seconds are left.

    It comes before torch, which would write the frames of its C++ into the log at each attempt.

    Raises:
        RuntimeError: nobody listens there, or there is no such address.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), max(AGAIN_SECONDS, end - time.monotonic())).close()
            return max(AGAIN_SECONDS, end - time.monotonic())
        except (OSError, ValueError) as error:  # ValueError: no name of any host
            is_over = time.monotonic() + AGAIN_SECONDS >= end
            if is_over or isinstance(error, ValueError):
                raise RuntimeError(f"nobody answers at {host}:{port}: {error}") from error
        time.sleep(AGAIN_SECONDS)


def _serve(listener: socket.socket, host: str, seconds: float) -> Store:
    listener.listen()
    return TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=seconds),
        master_listen_fd=listener.detach(),
    )
