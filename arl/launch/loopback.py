"""Reach the processes of a run on this host: the loopback interface, a port that is held, the key of the run."""

import contextlib
import secrets
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def new_key() -> str:
    """Secret of one run: every process of it knows it, nobody else does."""
    return secrets.token_hex(24)  # no sign that a command line could take for an option


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A free port, given to nobody by chance meanwhile; rank 0, which takes seconds to get there, may still listen."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
