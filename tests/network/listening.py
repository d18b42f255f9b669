"""Find every socket on which the processes of a run listen."""

import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tests.network.namespaces import Network

LINE = re.compile(r"(?P<protocol>\w+) +\w+ +\d+ +\d+ +(?P<address>\S+):(?P<port>\d+) .*pid=(?P<pid>\d+)")


class Listening(NamedTuple):
    """Describe a socket."""

    process: str
    protocol: str
    interface: str  # address, loopback, or what else it is


# Of a run that broadcasts weights, with two trainer ranks on one host and an engine on another.
SOCKETS = Counter(
    [
        Listening("controller", "tcp", "address"),  # the trainer's channel
        Listening("engine", "tcp", "address"),  # HTTP
        Listening("rank 0", "tcp", "address"),  # torch's store where ranks meet
        Listening("rank 0", "tcp", "address"),  # torch's store of the broadcast
        Listening("rank 0", "tcp", "address"),  # pairs of gloo, of the ranks
        Listening("rank 0", "tcp", "address"),  # and of the broadcast
        Listening("rank 1", "tcp", "address"),
        Listening("engine", "tcp", "address"),
    ]
)


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
