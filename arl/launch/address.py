"""Say where the processes of a run listen: an address, a network interface, a free port, and the run's key."""

import contextlib
import os
import platform
import secrets
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from arl.launch.free_port import bind_free

HOST = "ARL_HOST"  # environment of every process of a run: the address on which it listens and is reached
LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE: Mapping[str, str] = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def listening_address() -> str:
    """Return the address on which this process listens: its launcher's choice, or loopback if none started it."""
    return os.environ.get(HOST, LOOPBACK)


def host_identity() -> str:
    """Identify what shares its loopback addresses with this process: one boot of a machine, and a network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    network = Path("/proc/self/ns/net").readlink()
    return f"{boot} {network}"


def new_key() -> str:
    """Make the secret of one run, which only its own processes know."""
    return secrets.token_hex(24)  # hexadecimal, because a command line could take a leading "-" for an option


def interfaces() -> dict[str, str]:
    """Return interface -> IPv4 address, of those that have one."""
    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        own = [entry.address for entry in addresses if entry.family == socket.AF_INET]
        if own:
            found[name] = own[0]
    return found


def own_address(interface: str | None) -> str:
    """Return the IPv4 address of this machine on `interface`; None: that to which its own name resolves.

    Raises:
        OSError: there is no such interface, it has no address, or the name does not resolve.
    """
    if interface is None:
        name = platform.node()
        try:
            return socket.gethostbyname(name)
        except OSError as error:
            raise OSError(
                f"its own name {name} does not resolve ({error.strerror}), and no interface is given"
            ) from error
    known = interfaces()
    if interface not in known:
        raise OSError(f"no interface {interface} with an IPv4 address; there are {', '.join(sorted(known))}")
    return known[interface]


def interface_of(address: str) -> str | None:
    """Return the interface that has `address`; None: this machine has no such address."""
    return next((name for name, own in interfaces().items() if own == address), None)


def free_listener(host: str) -> socket.socket:
    """Bind a socket to a free port of `host`; see `bind_free`."""
    return bind_free(host)


@contextlib.contextmanager
def held_port(host: str) -> Iterator[int]:
    """Hold a free port of `host` until another socket listens on it, which takes seconds."""
    with free_listener(host) as held:
        yield held.getsockname()[1]


@contextlib.contextmanager
def held_meeting() -> Iterator[tuple[str, int]]:
    """Hold a port where the ranks of a process group will meet, and yield address and port.

    Only rank 0 does, with others to meet, if torchrun has not chosen a port already; else they are "" and 0.
    """
    has_others = int(os.environ["WORLD_SIZE"]) > 1
    if int(os.environ["RANK"]) > 0 or not has_others or "MASTER_PORT" in os.environ:
        yield "", 0
        return
    host = listening_address()
    with held_port(host) as port:
        yield host, port
