"""Run arl.launch.node_probe on every node of a reservation, and turn the reports into Nodes."""

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ray
from ray.exceptions import RayError

from arl.config.cluster_section import Cluster
from arl.launch.address import LOOPBACK
from arl.launch.base import Node
from arl.launch.node_reports import open_probe
from arl.launch.ray.loss import reason
from arl.launch.ray.reservation import RayNode, Reservation

PROBE_SECONDS = 120.0  # for Python on a slow file system
WORKER_SECONDS = 60.0  # for a Ray worker to start, before that


def run_probe(argv: Sequence[str], directory: str) -> str:
    """Run a command on this node, and return what it has printed, or why it cannot run."""
    try:
        done = subprocess.run(
            argv,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout


_nodes: dict[tuple[Path, str], list[Node]] = {}  # by run directory and section; looked at once, which takes seconds


def probed_nodes(reservation: Reservation, cluster: Cluster, run_directory: Path) -> list[Node]:
    """Look at every node, once; the GPUs that it sees are those that Ray has given the run there.

    Raises:
        InputError: a node cannot take part.
    """
    key = (run_directory, cluster.model_dump_json())
    if key not in _nodes:
        _nodes[key] = _probe(reservation, cluster, run_directory)
    return _nodes[key]


def _probe(reservation: Reservation, cluster: Cluster, run_directory: Path) -> list[Node]:
    names = distinct_names(reservation.nodes)
    task = ray.remote(run_probe)
    with open_probe(cluster, run_directory) as probe:
        argv = (sys.executable, "-m", "arl.launch.node_probe", probe.spec)
        answers = {}
        for number, name in enumerate(names):
            options = reservation.options(number, with_gpus=True)
            answers[name] = task.options(**options, max_retries=0).remote(argv, str(Path.cwd()))
        output = {name: _answer(answer) for name, answer in answers.items()}
        nodes = probe.nodes(names, output)
    if len(nodes) == 1:
        return [replace(nodes[0], address=LOOPBACK)]
    return nodes


def distinct_names(nodes: Sequence[RayNode]) -> list[str]:
    """Return the name of each node, with its address where others have the same name."""
    counts = Counter(node.name for node in nodes)
    return [node.name if counts[node.name] == 1 else f"{node.name} at {node.address}" for node in nodes]


def _answer(answer: "ray.ObjectRef[str]") -> str:
    """Wait for what a probe has printed, or return Ray's reason why there is nothing."""
    try:
        printed: str = ray.get(answer, timeout=WORKER_SECONDS + PROBE_SECONDS)
    except RayError as error:
        return reason(error)
    return printed
