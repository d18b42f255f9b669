"""Find every socket on which the processes of a run listen."""

import re
import subprocess
from collections import Counter
from collections.abc import Mapping

from tests.network.namespaces import Network

LINE = re.compile(r"(?P<protocol>\w+) +\w+ +\d+ +\d+ +(?P<address>\S+):(?P<port>\d+) .*pid=(?P<pid>\d+)")


# Of a run that broadcasts weights, with two trainer ranks on one host and an engine on another.
SOCKETS = Counter(
    {
        "controller, tcp, network": 1,  # the trainer's channel
        "engine, tcp, network": 2,  # HTTP, and pairs of gloo for the broadcast
        "rank 0, tcp, network": 4,  # torch's stores where ranks meet and of the broadcast, and pairs of gloo of both
        "rank 1, tcp, network": 1,  # pairs of gloo, of the ranks
    }
)


def listening(network: Network, roles: Mapping[int, str]) -> Counter[str]:
    """Count the sockets, TCP and UDP, of the processes whose role is given by pid, on all hosts."""
    command = ["ss", "--no-header", "--listening", "--tcp", "--udp", "--numeric", "--processes"]
    kinds = dict.fromkeys([network.address, *(host.address for host in network.hosts.values())], "network")
    found: Counter[str] = Counter()
    for argv in (command, *(host.argv(*command) for host in network.hosts.values())):
        table = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
        for match in filter(None, map(LINE.match, table.splitlines())):
            if int(match["pid"]) in roles:
                kind = kinds.get(match["address"], match["address"])
                found[f"{roles[int(match['pid'])]}, {match['protocol']}, {kind}"] += 1
    return found
