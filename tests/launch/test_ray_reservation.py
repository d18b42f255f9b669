"""Choose the nodes of a run on a Ray cluster, and refuse what cannot be one before anything starts."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from arl.launch.ray.reservation import RayNode

HIDE_RAY = "import sys; sys.modules['ray'] = None; from arl.cli import main; main()"


def test_without_ray_the_launcher_says_how_to_get_it_and_nothing_has_started(tmp_path: Path) -> None:
    flags = ("train", "recipes/quickstart.yaml", "--launcher", "ray", "--set", f"output.directory={tmp_path / 'runs'}")
    done = subprocess.run(
        [sys.executable, "-c", HIDE_RAY, *flags], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2, done.stdout + done.stderr
    words = " ".join(done.stderr.split())
    assert "Ray is not installed; pip install -e '.[ray]' in arl's clone on every node, or use launcher: local" in words
    assert "Traceback" not in words
    assert not (tmp_path / "runs").exists()


def test_the_command_line_does_not_import_ray() -> None:
    probe = "import sys, arl.cli, arl.run.train, arl.launch.ray.ray_launcher; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False, timeout=60).returncode == 0


@given(
    gpus=st.lists(st.integers(0, 8), min_size=1, max_size=12),
    here=st.integers(0, 11),
    count=st.integers(1, 14),
)
def test_the_controllers_node_comes_first_and_no_node_with_fewer_gpus_before_one_with_more(
    gpus: list[int], here: int, count: int
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    from arl.launch.ray.reservation import RayNode, choose_nodes

    alive = [RayNode(str(i), f"n{i}", f"10.0.0.{i}", {"GPU": float(count)}) for i, count in enumerate(gpus)]
    own = alive[here % len(alive)]
    chosen = choose_nodes(alive, own.id, count)
    assert chosen[0] == own
    assert len(chosen) == len({node.id for node in chosen}) == min(count, len(alive))
    assert _gpus(chosen[1:]) == sorted(_gpus(chosen[1:]), reverse=True)
    left_out = [node for node in alive if node not in chosen]
    assert not left_out or not chosen[1:] or max(_gpus(left_out)) <= min(_gpus(chosen[1:]))


def test_nodes_of_one_name_are_told_apart_by_their_addresses() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    from arl.launch.ray.reservation import RayNode, distinct_names

    nodes = [RayNode(address, name, address, {}) for name, address in (("a", "10.1"), ("b", "10.2"), ("a", "10.3"))]
    assert distinct_names(nodes) == ["a at 10.1", "b", "a at 10.3"]


def _gpus(nodes: "list[RayNode]") -> list[float]:
    return [node.resources["GPU"] for node in nodes]
