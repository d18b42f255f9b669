"""What several nodes report becomes Nodes, or one message that names every node that cannot take part."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from arl.config.cluster_section import Cluster
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.nodes import NodeReport, checked_nodes, probed_nodes


def report(name: str, address: str = "10.0.0.7", torch: str = "2.13", problem: str = "") -> NodeReport:
    return NodeReport(Node(name, 8, address=address), f"torch {torch}", problem)


def test_nodes_are_looked_at_by_the_real_probe_and_one_that_writes_no_report_is_named_with_what_it_said(
    tmp_path: Path,
) -> None:
    def probe(argv: Sequence[str]) -> str:
        subprocess.run([word.replace("{}", "n1") for word in argv], timeout=120, check=True)
        return "bash: python: command not found\n"

    (node,) = probed_nodes(["n1"], Cluster(interface="lo"), tmp_path / "not" / "yet", probe)
    assert (node.name, node.address, node.cores >= 1) == ("n1", "127.0.0.1", True)
    with pytest.raises(InputError, match=rf"^node n3: arl does not run .* does not see {tmp_path} \(bash: python"):
        probed_nodes(["n1", "n3"], Cluster(interface="lo"), tmp_path, probe)
    assert not list(tmp_path.iterdir()), "the probe leaves nothing behind"


def test_all_nodes_that_cannot_take_part_are_named_in_one_message() -> None:
    debian = report("n4", address="127.0.1.1")
    with pytest.raises(InputError) as raised:
        checked_nodes([report("n1"), report("n2", torch="2.0"), report("n3", problem="no interface ib0"), debian], None)
    two, three, four = str(raised.value).splitlines()
    assert two.startswith("node n2: it has torch 2.0, and the controller's node has torch 2.13; install")
    assert three == "node n3: no interface ib0"
    assert four.startswith("node n4: its own name resolves to 127.0.1.1, which other nodes do not reach; set")
    assert checked_nodes([debian], None) == [debian.node]
