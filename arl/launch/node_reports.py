"""Turn the reports of all nodes into Nodes, or into one message that names every node that cannot take part.

open_probe ─► ProbeSpec ─► the launcher runs arl.launch.node_probe on each node ─► its lines ─► Probe.nodes
"""

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from arl.config.cluster_section import Cluster
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.disk import nearest_directory
from arl.launch.node_probe import MARK, NONCE, NodeReport, ProbeSpec
from arl.launch.tls import is_loopback

CLOCK_SECONDS = 2.0  # by which clocks may differ, because traces of several nodes are drawn on one axis


@dataclass(frozen=True)
class Probe:
    """Look at all nodes once; see `open_probe`.

    with open_probe(cluster, run_directory) as probe:
        output = {name: ... for name in names}         # what `python -m arl.launch.node_probe SPEC` printed on each
        nodes = probe.nodes(names, output)
    """

    directory: Path
    nonce: str
    spec: str  # the argument of arl.launch.node_probe
    interface: str | None  # cluster.interface
    began: float

    def nodes(self, names: Sequence[str], output: Mapping[str, str]) -> list[Node]:
        """Return the nodes in the order of `names`, the controller's first.

        Args:
            names: of all nodes, as the launcher knows them; no two are equal.
            output: name -> what the probe has printed there.

        Raises:
            InputError: a node cannot take part; one line for each.
        """
        ended = time.time()
        reports = {name: _read(output.get(name, "")) for name in names}
        first = reports[names[0]]
        problems = []
        for name, report in reports.items():
            problem = report.problem or self._differs(report, first, ended)
            if not problem and len(names) > 1:
                problem = self._unreachable(report)
            if problem:
                problems.append(f"node {name}: {problem}")
        if problems:
            raise InputError("\n".join(problems))
        return [_node(name, report) for name, report in reports.items()]

    def _unreachable(self, report: NodeReport) -> str:
        """Say why other nodes do not reach a node; empty: nothing is known against it."""
        if self.interface is not None or not is_loopback(report.address):
            return ""
        known = ", ".join(f"{interface} has {address}" for interface, address in report.interfaces.items())
        return (
            f"its own name {report.name} resolves to {report.address}, which other nodes do not reach; set "
            f"cluster.interface ({known or 'there is none but loopback'}), or mend its /etc/hosts"
        )

    def _differs(self, report: NodeReport, first: NodeReport, ended: float) -> str:
        """Say why a node cannot work with the controller's; empty: it can."""
        if report.nonce != self.nonce or report.name not in os.listdir(self.directory):
            return (
                f"it does not see the files of the controller in {self.directory.parent}; give output.directory a path "
                "on a file system that all nodes share"
            )
        for package, version in first.versions.items():
            own = report.versions.get(package, "of no version")
            if own != version:
                return (
                    f"it has {package} {own}, and the controller's node has {version}; install "
                    "one environment on all nodes"
                )
        ahead = max(report.clock - ended, 0.0) - max(self.began - report.clock, 0.0)
        if abs(ahead) > CLOCK_SECONDS:
            direction = "ahead of" if ahead > 0 else "behind"
            return f"its clock is {abs(ahead):.0f} s {direction} the controller's; synchronize clocks (chrony, ntpd)"
        return ""


@contextlib.contextmanager
def open_probe(cluster: Cluster, directory: Path) -> Iterator[Probe]:
    """Write what nodes must see, and remove it afterwards.

    Args:
        directory: of the run, which need not exist; the nearest directory above that does is used.

    Raises:
        InputError: nothing can be written there.
    """
    place = nearest_directory(directory)
    try:
        exchange = Path(tempfile.mkdtemp(prefix=".arl-probe-", dir=place))
    except OSError as error:
        raise InputError(f"output.directory {directory}: {place} cannot be written to ({error.strerror})") from error
    nonce = secrets.token_hex(8)
    (exchange / NONCE).write_text(nonce)
    spec = ProbeSpec(str(exchange), cluster.interface)
    try:
        yield Probe(
            directory=exchange,
            nonce=nonce,
            spec=msgspec.json.encode(spec).decode(),
            began=time.time(),
            interface=cluster.interface,
        )
    finally:
        shutil.rmtree(exchange, ignore_errors=True)


def _read(output: str) -> NodeReport:
    """Find the report among the lines that the probe has printed."""
    for line in output.split("\n"):
        if line.startswith(MARK):
            return _decoded(line.removeprefix(MARK))
    said = output.strip().splitlines()
    why = said[-1] if said else "it printed nothing"
    return NodeReport("", problem=f"arl does not run there ({why}); install its environment under the same path")


def _decoded(report: str) -> NodeReport:
    try:
        return msgspec.json.decode(report, type=NodeReport)
    except msgspec.DecodeError as error:
        return NodeReport("", problem=f"its report cannot be read ({error}); install the same version of arl there")


def _node(name: str, report: NodeReport) -> Node:
    return Node(
        name=name,
        cores=report.cores,
        devices=report.devices,
        device_name=report.device_name,
        device_bytes=report.device_bytes,
        address=report.address,
    )
