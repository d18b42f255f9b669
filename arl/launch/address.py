"""Say where the processes of a run listen: an address, a network interface, a port that is held, and the run's key."""

import contextlib
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterator, Mapping

from arl.errors import InputError
from arl.launch.ports import bind_free

HOST = "ARL_HOST"  # environment of every process of a run: the address on which it listens and is reached
LOOPBACK = "127.0.0.1"
BACKLOG = 1024  # connections that wait to be accepted
LOOPBACK_INTERFACE: Mapping[str, str] = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def listening_address() -> str:
    """Return the address on which this process listens: its launcher's choice, or loopback if none started it."""
    return os.environ.get(HOST, LOOPBACK)


def is_loopback(host: str) -> bool:
    """Return True if only processes of this machine reach `host`.

    >>> [is_loopback(host) for host in ("localhost", "::1", "10.0.0.7", "node-3")]
    [True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may be any machine's
        return False


def free_listener(host: str) -> socket.socket:
    """Return a socket that listens on a free port of `host`, within ARL_PORTS if that is set.

    Raises:
        InputError: no port of the range is free, or `host` is no address of this machine.
    """
    try:
        listener = bind_free(host)
        listener.listen(BACKLOG)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot listen on {host}: {reason}") from error
    return listener


def new_key() -> str:
    """Make the secret of one run, which only its own processes know."""
    return secrets.token_hex(24)  # hexadecimal, because a command line could take a leading "-" for an option


@contextlib.contextmanager
def held_port(host: str) -> Iterator[int]:
    """Hold a free port of `host` until rank 0 listens on it, which takes seconds.

    While it is held, the kernel gives it to nobody by chance. Rank 0 may listen nevertheless, because both sides set
    SO_REUSEADDR and this one does not listen.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        yield held.getsockname()[1]
