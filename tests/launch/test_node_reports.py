"""What several nodes report becomes Nodes, or one message that names every node that cannot take part."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from arl.config.cluster_section import Cluster
from arl.errors import InputError
from arl.launch.node_probe import MARK, NodeReport
from arl.launch.node_reports import Probe, open_probe

ADDRESS = "10.0.0.7"  # of a node; the probe itself runs on loopback here


def run_probe(spec: str) -> str:
    """Run the real probe on this machine."""
    command = [sys.executable, "-m", "arl.launch.node_probe", spec]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def changed(output: str, **changes: object) -> str:
    """Return the report of a node that differs from this machine."""
    report = msgspec.json.decode(output.removeprefix(MARK), type=NodeReport)
    return MARK + msgspec.json.encode(msgspec.structs.replace(report, **changes)).decode()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Probe, str]:
    """Return a probe whose directory stays, and what this machine has reported to it."""
    context = open_probe(Cluster(interface="lo"), tmp_path_factory.mktemp("run") / "not" / "yet")
    with context as probe:
        output = changed(run_probe(probe.spec), address=ADDRESS)
    probe.directory.mkdir()
    name = msgspec.json.decode(output.removeprefix(MARK), type=NodeReport).name
    (probe.directory / name).touch()
    return probe, output


def test_a_node_that_sees_the_same_files_takes_part_under_its_address(report: tuple[Probe, str]) -> None:
    probe, output = report
    (node,) = probe.nodes(["n1"], {"n1": f"a line of another program\n{output}"})
    assert (node.name, node.address, node.devices) == ("n1", ADDRESS, ())
    assert node.cores >= 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"nonce": "another"}, "it does not see the files of the controller in .*; give output.directory a path"),
        ({"name": "elsewhere"}, "it does not see the files of the controller"),
        ({"clock": 1e10}, r"its clock is \d+ s ahead of the controller's; synchronize clocks"),
        ({"clock": 0.0}, r"its clock is \d+ s behind"),
        ({"problem": "no interface ib0"}, "no interface ib0"),
    ],
)
def test_a_node_that_cannot_take_part_is_named_with_the_remedy(
    report: tuple[Probe, str], changes: dict[str, object], problem: str
) -> None:
    probe, output = report
    with pytest.raises(InputError, match=f"^node n2: {problem}") as raised:
        probe.nodes(["n1", "n2"], {"n1": output, "n2": changed(output, **changes)})
    assert "n1" not in str(raised.value)


def test_a_node_that_is_alone_may_listen_on_loopback(report: tuple[Probe, str]) -> None:
    probe, output = report
    (node,) = probe.nodes(["n1"], {"n1": changed(output, address="127.0.0.1")})
    assert node.address == "127.0.0.1"


def test_all_nodes_that_cannot_take_part_are_named_in_one_message(report: tuple[Probe, str]) -> None:
    probe, output = report
    versions = msgspec.json.decode(output.removeprefix(MARK), type=NodeReport).versions
    older = changed(output, versions={**versions, "torch": "2.0"})
    with pytest.raises(InputError) as raised:
        probe.nodes(["n1", "n2", "n3"], {"n1": output, "n2": older, "n3": "bash: python: command not found"})
    first, second = str(raised.value).splitlines()
    assert re.match(r"node n2: it has torch 2\.0, and the controller's node has .*; install one environment", first)
    assert re.match(r"node n3: arl does not run there \(bash: python: command not found\); install", second)


def test_a_name_that_resolves_to_loopback_is_refused_where_there_are_several_nodes(report: tuple[Probe, str]) -> None:
    probe, output = report
    of_names = dataclasses.replace(probe, interface=None)
    debian = changed(output, address="127.0.1.1", interfaces={"eth0": "192.0.2.2", "ib0": "10.1.0.2"})
    assert of_names.nodes(["n1"], {"n1": debian})
    with pytest.raises(
        InputError, match=r"^node n2: its own name .* resolves to 127\.0\.1\.1, .*set cluster\.interface \(eth0 has 192"
    ):
        of_names.nodes(["n1", "n2"], {"n1": changed(output, address="10.0.0.1"), "n2": debian})


def test_the_probe_itself_says_what_is_wrong_with_its_node(tmp_path: Path) -> None:
    with open_probe(Cluster(interface="nowhere0"), tmp_path) as probe:
        output = run_probe(probe.spec)
        with pytest.raises(InputError, match=r"node n1: no interface nowhere0 with an IPv4 address; there are .*lo"):
            probe.nodes(["n1"], {"n1": output})
    assert not list(tmp_path.iterdir()), "the probe leaves nothing behind"
