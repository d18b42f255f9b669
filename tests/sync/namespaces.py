"""Run the second node of a run in a network namespace of its own, with shared memory of its own, as root.

controller and engines, node 0 ── veth ── trainer ranks, node 1: a namespace with another /dev/shm

The nodes share the file system, as those of a cluster do. Everything that is made here carries the prefix `weights`.
"""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from arl.launch.address import HOST
from arl.launch.base import Command, Node, Process, Resources
from arl.launch.local import LocalLauncher

SUBNET = "10.231.7"
PAIR = "ARL_TEST_PAIR"  # environment: name of the namespace
LEFT = "left in shared memory:"
OWN_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
# The same, and the last line says what the command has left there.
WATCHED_MEMORY = (*OWN_MEMORY, "sh", "-c", f'"$@"; code=$?; echo {LEFT} $(ls -A /dev/shm); exit $code', "sh")


@dataclass(frozen=True)
class Pair:
    """Two nodes and the cable between them."""

    name: str  # of the namespace; the ends of the cable are <name>a and <name>b

    @property
    def addresses(self) -> tuple[str, str]:
        return f"{SUBNET}.1", f"{SUBNET}.2"

    @property
    def interfaces(self) -> tuple[str, str]:
        return f"{self.name}a", f"{self.name}b"

    def received_bytes(self) -> int:
        """Return what has come from node 1 to node 0."""
        return int(Path("/sys/class/net", self.interfaces[0], "statistics", "rx_bytes").read_text())


@contextlib.contextmanager
def two_nodes() -> Iterator[Pair]:
    """Make the second node, and remove it afterwards."""
    pair = Pair(f"weights{os.getpid() % 10**6}")
    ours, theirs = pair.interfaces
    _ip("netns", "add", pair.name)
    try:
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", pair.name)
        _ip("addr", "add", f"{pair.addresses[0]}/30", "dev", ours)
        _ip("link", "set", ours, "up")
        _ip("-n", pair.name, "addr", "add", f"{pair.addresses[1]}/30", "dev", theirs)
        _ip("-n", pair.name, "link", "set", theirs, "up")
        _ip("-n", pair.name, "link", "set", "lo", "up")
        yield pair
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # it was never made
            _ip("link", "del", ours)
        _ip("netns", "del", pair.name)


def lacking() -> str:
    """Say why namespaces cannot be made here; empty: they can."""
    try:
        with two_nodes():
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {error}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=60)


class NamespaceLauncher(LocalLauncher):
    """Start processes on either node of the pair that the environment names, and write down what each was given."""

    @property
    def nodes(self) -> Sequence[Node]:
        pair = Pair(os.environ[PAIR])
        return [Node(f"n{number}", cores=1, address=address) for number, address in enumerate(pair.addresses)]

    async def start(
        self, role: str, command: Command, resources: Resources, on_line: Callable[[str], None] | None = None
    ) -> Process:
        pair = Pair(os.environ[PAIR])
        given = [f"{name}={value}" for name, value in command.environment.items()]
        (self.logs / f"{role}.environment").write_text("\n".join(given))
        interface = pair.interfaces[resources.node]
        address = f"{HOST}={pair.addresses[resources.node]}"
        argv = ["env", address, f"GLOO_SOCKET_IFNAME={interface}", *command.argv]
        if resources.node == 1:
            argv = ["nsenter", f"--net=/run/netns/{pair.name}", *OWN_MEMORY, *argv]
        return await super().start(role, Command(tuple(argv), command.environment, command.secrets), resources, on_line)
