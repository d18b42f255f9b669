"""Make hosts of a network on this machine: namespaces that a bridge connects. It takes root.

this process ── bridge ─┬─ veth ─ host "a"        each with an address of its own, and no name server
                        └─ veth ─ host "b"
"""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

LISTENING = "0A"  # state of a socket, in /proc/net/tcp


def command(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=60)


@dataclass(frozen=True)
class Host:
    """Represent a namespace."""

    name: str
    address: str
    interface: str

    def argv(self, *argv: str) -> list[str]:
        """Return the command that runs `argv` on this host."""
        return ["ip", "netns", "exec", self.name, *argv]

    def listeners(self) -> list[tuple[str, int]]:
        """Return address and port of every socket that listens on this host."""
        table = subprocess.run(
            self.argv("cat", "/proc/net/tcp"), check=True, capture_output=True, text=True, timeout=60
        ).stdout
        return list(_listeners(table))


def _listeners(table: str) -> Iterator[tuple[str, int]]:
    for line in table.splitlines()[1:]:
        place, state = line.split()[1], line.split()[3]
        if state == LISTENING:
            address, _, port = place.partition(":")
            yield socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)


@dataclass
class Network:
    """Hold the bridge and its hosts.

    Args:
        bridge: its interface.
        address: of this process on it.
        hosts: by their short names.
    """

    bridge: str
    address: str
    hosts: dict[str, Host] = field(default_factory=dict)

    def listeners(self) -> list[tuple[str, int]]:
        """Return every address and port that listens on the network: on its hosts, and of this process."""
        found = list(_listeners(Path("/proc/net/tcp").read_text()))
        for host in self.hosts.values():
            found += host.listeners()
        return [place for place in found if not place[0].startswith("127.")]


def _refuse_without_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("namespaces take root")
    if shutil.which("ip") is None:
        pytest.skip("no ip on PATH: apt-get install iproute2")


@contextlib.contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    """Yield a network with a host for each name; its namespaces and interfaces are removed at the end."""
    _refuse_without_root()
    number = os.getpid() % 10_000
    subnet = f"10.{213 + number // 5000}.{number % 250}"
    made = Network(f"trust{number}", f"{subnet}.1")
    with contextlib.ExitStack() as undo:
        command("ip", "link", "add", made.bridge, "type", "bridge")
        undo.callback(command, "ip", "link", "del", made.bridge)
        command("ip", "addr", "add", f"{made.address}/24", "dev", made.bridge)
        command("ip", "link", "set", made.bridge, "up")
        for i, name in enumerate(names):
            host = Host(f"trust-{number}-{name}", f"{subnet}.{i + 2}", f"tr{number}h{i}")
            undo.enter_context(_no_name_servers(host))
            command("ip", "netns", "add", host.name)
            undo.callback(command, "ip", "netns", "del", host.name)
            _connect(host, made.bridge)
            made.hosts[name] = host
        yield made


@contextlib.contextmanager
def _no_name_servers(host: Host) -> Iterator[None]:
    """Have `ip netns exec` show the host an empty resolv.conf, because gloo looks up names of addresses."""
    folder = Path("/etc/netns") / host.name
    folder.mkdir(parents=True)
    (folder / "resolv.conf").write_text("")
    try:
        yield
    finally:
        shutil.rmtree(folder)


def _connect(host: Host, bridge: str) -> None:
    outer = f"{host.interface}o"
    command("ip", "link", "add", outer, "type", "veth", "peer", "name", host.interface, "netns", host.name)
    command("ip", "link", "set", outer, "master", bridge, "up")
    inside = ("ip", "-n", host.name)
    command(*inside, "addr", "add", f"{host.address}/24", "dev", host.interface)
    command(*inside, "link", "set", host.interface, "up")
    command(*inside, "link", "set", "lo", "up")
