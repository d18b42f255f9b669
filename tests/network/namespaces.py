"""Make hosts of a network on this machine: namespaces that a bridge connects. It takes root.

this process ── bridge ─┬─ veth ─ host "a"        each with an address of its own, and no name server
                        └─ veth ─ host "b"
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest


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
            command("ip", "netns", "add", host.name)
            undo.callback(command, "ip", "netns", "del", host.name)
            _connect(host, made.bridge)
            made.hosts[name] = host
        yield made


def _connect(host: Host, bridge: str) -> None:
    outer = f"{host.interface}o"
    command("ip", "link", "add", outer, "type", "veth", "peer", "name", host.interface, "netns", host.name)
    command("ip", "link", "set", outer, "master", bridge, "up")
    inside = ("ip", "-n", host.name)
    command(*inside, "addr", "add", f"{host.address}/24", "dev", host.interface)
    command(*inside, "link", "set", host.interface, "up")
    command(*inside, "link", "set", "lo", "up")
