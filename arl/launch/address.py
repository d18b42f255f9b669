"""Say where the processes of a run listen: an address, a network interface, a free port, and the run's key."""

import contextlib
import errno
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from arl.config.ports import port_range
from arl.errors import InputError
from arl.launch.free_port import ANY_PORT, bind_free

HOST = "ARL_HOST"  # environment of every process of a run: the address on which it listens and is reached
PORTS = "ARL_PORTS"  # environment of every process of a run whose recipe has cluster.ports: as in 20000-20999
LOOPBACK = "127.0.0.1"
ENOUGH_PORTS = 2_100  # more than arl.launch.port_needs asks of a node, which has MOST_PROCESSES engines at most
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


def allowed_ports() -> range:
    """Return the ports of which this process may take one to listen on."""
    text = os.environ.get(PORTS)
    return ANY_PORT if text is None else port_range(text)


def free_listener(host: str) -> socket.socket:
    """Bind a socket to a free port of `host`, one that cluster.ports allows. It does not listen yet.

    No other socket takes the port by chance. One that sets SO_REUSEADDR may listen on it while this one does not.

    Raises:
        InputError: every port of the range is taken.
        OSError: this machine does not have the address.
    """
    ports = allowed_ports()
    try:
        return bind_free(host, ports)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        taken = f"cluster.ports {ports[0]}-{ports[-1]}: all of them are taken on {host}"
        raise InputError(f"{taken}; give a longer range, or other ports") from error


def count_free_ports(host: str, ports: range) -> int:
    """Return how many of `ports` are free on `host`; beyond ENOUGH_PORTS it does not look.

    Raises:
        OSError: this machine does not have the address.
    """
    count = 0
    for port in ports:
        if count == ENOUGH_PORTS:
            break
        try:
            bind_free(host, [port]).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            count += 1
    return count


@contextlib.contextmanager
def held_port(host: str) -> Iterator[int]:
    """Hold a free port of `host` until another socket listens on it, which takes seconds."""
    with free_listener(host) as held:
        yield held.getsockname()[1]


@contextlib.contextmanager
def rank_environments(host: str, num_ranks: int) -> Iterator[Sequence[Mapping[str, str]]]:
    """Yield torchrun's variables for each rank of a process group whose ranks all run on this machine."""
    with held_port(host) as port:
        common = {
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_RANK": "0",  # each rank sees only its own device
        }
        yield [{**common, "RANK": str(rank)} for rank in range(num_ranks)]


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
