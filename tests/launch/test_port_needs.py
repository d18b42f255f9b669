"""A range of ports of which too few are free is refused before anything starts; each node is named."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.errors import InputError
from arl.launch.address import LOOPBACK, count_free_ports
from arl.launch.base import Node
from arl.launch.free_port import bind_free
from arl.launch.node_probe import MARK, NodeReport, ProbeSpec
from arl.launch.placement import place
from arl.launch.port_needs import ports_needed, refuse_too_few_ports
from arl.run.preflight import preflight

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


@contextlib.contextmanager
def taken(count: int) -> Iterator[range]:
    """Yield four neighbouring ports of which `count` are taken. Each process of pytest has a range of its own."""
    begin = 26_000 + 1_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4)
    for first in range(begin, begin + 1_000, 4):
        ports = range(first, first + 4)
        with contextlib.ExitStack() as listeners:
            try:
                bound = [socket.create_server((LOOPBACK, port)) for port in ports]
            except OSError:
                continue
            for listener in bound[:count]:
                listeners.enter_context(listener)
            for listener in bound[count:]:
                listener.close()
            yield ports
            return
    raise AssertionError("no four ports are free")


def recipe(ports: range, *overrides: str) -> Recipe:
    return load_recipe(QUICKSTART, [f"cluster.ports={ports[0]}-{ports[-1]}", *overrides])


@pytest.mark.parametrize("count", range(5))
def test_the_probe_of_a_node_counts_the_ports_that_nobody_uses(count: int, tmp_path: Path) -> None:
    with taken(count) as ports:
        assert count_free_ports(LOOPBACK, ports) == 4 - count
        spec = ProbeSpec(str(tmp_path), "lo", f"{ports[0]}-{ports[-1]}")
        command = [sys.executable, "-m", "arl.launch.node_probe", msgspec.json.encode(spec).decode()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    report = msgspec.json.decode(done.stdout.removeprefix(MARK), type=NodeReport)
    assert (report.problem, report.free_ports) == ("", 4 - count)


def test_no_more_ports_are_bound_than_a_run_may_need(monkeypatch: pytest.MonkeyPatch) -> None:
    with taken(1) as ports:
        monkeypatch.setattr("arl.launch.address.ENOUGH_PORTS", 2)
        bound: list[int] = []

        def bind(host: str, tried: list[int]) -> socket.socket:
            bound.extend(tried)
            return bind_free(host, tried)

        monkeypatch.setattr("arl.launch.address.bind_free", bind)
        assert count_free_ports(LOOPBACK, ports) == 2
        assert bound == list(ports[:3])


def test_a_run_that_needs_more_ports_than_are_free_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with taken(2) as ports:
        preflight(recipe(ports, "engine.replicas=1"))  # the controller and an engine
        expected = (
            rf"cluster\.ports {ports[0]}-{ports[-1]}: 2 of its 4 ports are taken and 2 are free, .* needs 4 there"
        )
        with pytest.raises(InputError, match=expected):
            preflight(recipe(ports, "engine.replicas=2", "train.ranks=2"))
    assert list(tmp_path.iterdir()) == []


def test_every_node_with_too_few_free_ports_is_named() -> None:
    wide = recipe(range(20000, 20004), "launcher=slurm", "cluster.nodes=3", "engine.replicas=4")
    nodes = [Node(f"n{number}", cores=8, free_ports=free) for number, free in enumerate((1, 2, 0), 1)]
    placement = place(wide, nodes)
    assert [ports_needed(placement, number) for number in range(3)] == [3, 2, 0]
    with pytest.raises(InputError) as raised:
        refuse_too_few_ports("20000-20003", placement, nodes)
    assert str(raised.value).startswith("node n1: cluster.ports 20000-20003: 3 of its 4 ports are taken and 1 are free")
    assert "n2" not in str(raised.value)
    assert "n3" not in str(raised.value)
