"""Find every socket on which the processes of a run listen, and name its row in docs/security.md."""

import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.network.namespaces import Network

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
LINE = re.compile(r"(?P<protocol>\w+) +\w+ +\d+ +\d+ +(?P<address>\S+):(?P<port>\d+) .*pid=(?P<pid>\d+)")


class Listening(NamedTuple):
    """Describe a socket as the table does."""

    process: str
    protocol: str
    interface: str  # address, loopback, or what else it is


# Of a run that broadcasts weights, with two trainer ranks on one host and an engine on another.
DOCUMENTED: Mapping[str, Sequence[Listening]] = {
    "trainer's channel": [Listening("controller", "tcp", "address")],
    "HTTP of an engine, also that of evaluations": [Listening("engine", "tcp", "address")],
    "gate of the store where ranks meet": [Listening("rank 0", "tcp", "address")],
    "gate of the store of a broadcast": [Listening("rank 0", "tcp", "address")],
    "the stores behind both gates": [Listening("rank 0", "tcp", "loopback")] * 2,
    "tunnel to a gate": [
        Listening("rank 1", "tcp", "loopback"),
        Listening("engine", "tcp", "loopback"),
    ],
    "pairs of gloo": [
        Listening("rank 0", "tcp", "address"),  # of the ranks
        Listening("rank 0", "tcp", "address"),  # of the broadcast
        Listening("rank 1", "tcp", "address"),
        Listening("engine", "tcp", "address"),
    ],
}


def documented_rows() -> set[str]:
    """Return the first column of the table of sockets."""
    section = PAGE.read_text().split("## Every socket that listens")[1].split("\n## ")[0]
    return {line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")}


def listening(network: Network, roles: Mapping[int, str]) -> Counter[Listening]:
    """Return the sockets, TCP and UDP, of the processes whose role is given by pid, on all hosts."""
    command = ["ss", "--no-header", "--listening", "--tcp", "--udp", "--numeric", "--processes"]
    kinds = {network.address: "address", "127.0.0.1": "loopback"}
    kinds |= {host.address: "address" for host in network.hosts.values()}
    found: Counter[Listening] = Counter()
    for argv in (command, *(host.argv(*command) for host in network.hosts.values())):
        table = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
        for line in table.splitlines():
            match = LINE.match(line)
            if match is None or int(match["pid"]) not in roles:
                continue
            interface = kinds.get(match["address"], match["address"])
            found[Listening(roles[int(match["pid"])], match["protocol"], interface)] += 1
    return found
