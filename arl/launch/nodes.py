"""Look at every node before a run starts anything, and refuse nodes that cannot take part in one message.

probed_nodes ─► the launcher runs this module on each node ─► a report of each in a directory that all see ─► Nodes

python -m arl.launch.nodes DIRECTORY NAME [INTERFACE]
"""

import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.config.cluster_section import Cluster
from arl.errors import InputError
from arl.files import nearest_directory, refuse_unwritable
from arl.launch.base import Node, this_node
from arl.launch.devices import visible_devices
from arl.launch.network import is_loopback, own_address

PREFIX = ".arl-probe-"  # begins the name of the directory of the reports
PACKAGES = ("arl", "torch", "transformers")

_nodes: dict[tuple[tuple[str, ...], str], list[Node]] = {}  # by names and section; looked at once, which takes seconds


class NodeReport(Struct, frozen=True):
    """Hold what one node has, or why it cannot take part."""

    node: Node
    versions: str = ""  # of Python and packages that all nodes must have alike
    problem: str = ""


def probed_nodes(
    names: Sequence[str], cluster: Cluster, run: Path, probe: Callable[[Sequence[str]], str]
) -> list[Node]:
    """Look at the nodes, once in a process; return them in the order of `names`, the controller's first.

    Args:
        names: of all nodes, as the launcher knows them; no two are equal.
        cluster: of the recipe.
        run: its directory, which need not exist; the nearest directory above that does is used.
        probe: runs a command on every node, with the node's name in the place of {}, and returns what it has printed.

    Raises:
        InputError: a node cannot take part; one line for each.
    """
    key = (tuple(names), cluster.model_dump_json())
    if key not in _nodes:
        refuse_unwritable(run)
        place = nearest_directory(run)
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place) as path:
            interface = [cluster.interface] if cluster.interface else []
            printed = probe([sys.executable, "-m", "arl.launch.nodes", path, "{}", *interface])
            reports = [_read(Path(path) / name, place, printed) for name in names]
        _nodes[key] = checked_nodes(reports, cluster.interface)
    return _nodes[key]


def checked_nodes(reports: Sequence[NodeReport], interface: str | None) -> list[Node]:
    """Return the nodes that have sent these reports, the controller's first.

    Raises:
        InputError: a node cannot take part; one line for each.
    """
    problems = []
    first = reports[0]
    for report in reports:
        address = report.node.address
        problem = report.problem
        if not problem and report.versions != first.versions:
            problem = (
                f"it has {report.versions}, and the controller's node has {first.versions}; install one environment on "
                "all nodes"
            )
        elif not problem and len(reports) > 1 and interface is None and is_loopback(address):
            problem = (
                f"its own name resolves to {address}, which other nodes do not reach; set cluster.interface, or mend "
                "its /etc/hosts"
            )
        if problem:
            problems.append(f"node {report.node.name}: {problem}")
    if problems:
        raise InputError("\n".join(problems))
    return [report.node for report in reports]


def _read(file: Path, shared: Path, printed: str) -> NodeReport:
    """Read the report of a node; if it has written none, the report says why, by what the probes have printed."""
    if os.path.exists(file):
        return msgspec.json.decode(file.read_bytes(), type=NodeReport)
    why = printed.strip().rpartition("\n")[2]
    problem = (
        f"arl does not run there, or it does not see {shared} ({why}); install its environment under the same path, "
        "and give output.directory a path on a file system that all nodes share"
    )
    return NodeReport(Node(file.name, 0), problem=problem)


def main(directory: str, name: str, interface: str | None = None) -> None:
    """Write the report of this node, where the directory is seen."""
    versions = [f"{package} {importlib.metadata.version(package)}" for package in PACKAGES]
    try:
        node = this_node(name, own_address(interface), visible_devices())
        report = NodeReport(node, ", ".join([f"Python {platform.python_version()}", *versions]))
    except (OSError, InputError) as error:
        report = NodeReport(Node(name, 0), problem=str(error))
    Path(directory, name).write_bytes(msgspec.json.encode(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
