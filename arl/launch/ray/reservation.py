"""Connect to a Ray cluster and reserve the nodes of a run: one placement group, which holds until this process ends.

address ─► connect ─► choose_nodes: this node first ─► placement group of one bundle a node ─► probe of each node

A run takes whole nodes: the bundle of a node holds all of its CPUs and GPUs, and arl.launch.placement divides them.
"""

import contextlib
import functools
import logging
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from arl.config.cluster_section import Cluster
from arl.errors import InputError
from arl.launch.address import LOOPBACK
from arl.launch.base import Node
from arl.launch.node_probe import probed_nodes

CONNECT_SECONDS = 10.0
RESERVE_SECONDS = 60.0  # for what another run held until just now
PIN = 0.001  # of a node's own resource, which pins a bundle to the node
PINNED_KINDS = ("CPU", "GPU")
PROBE_SECONDS = 120.0  # for Python on a slow file system
WORKER_SECONDS = 60.0  # for a Ray worker to start, before that
GUESSES = " Some common causes include"  # begins what Ray adds to a cause that it does not know


@dataclass(frozen=True)
class RayNode:
    """Describe a node as Ray knows it.

    Args:
        id: Ray's, of this life of the node; one that comes back has another.
        name: host name.
        address: which Ray gave it.
        resources: CPU and GPU, as many as there are.
    """

    id: str
    name: str
    address: str
    resources: Mapping[str, float]

    @property
    def bundle(self) -> dict[str, float]:
        """Return what a run takes of it."""
        return {f"node:{self.address}": PIN, **self.resources}


@dataclass(frozen=True)
class Reservation:
    """Hold the nodes of a run, the controller's first; bundle i of the group is node i."""

    nodes: Sequence[RayNode]
    group: PlacementGroup

    def options(self, node: int, with_gpus: bool = False) -> dict[str, Any]:
        """Return the options of an actor or a task on a node.

        Args:
            with_gpus: Ray shows it the GPUs of the bundle, in CUDA_VISIBLE_DEVICES.
        """
        gpus = self.nodes[node].resources.get("GPU", 0) if with_gpus else 0
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=node)
        return {"num_cpus": 0, "num_gpus": gpus, "scheduling_strategy": strategy}

    def lost_nodes(self) -> frozenset[int]:
        """Ask Ray which nodes are dead."""
        alive = {node.id for node in alive_nodes()}
        return frozenset(number for number, node in enumerate(self.nodes) if node.id not in alive)

    def probed_nodes(self, cluster: Cluster, run: Path) -> list[Node]:
        """Look at every node; the GPUs that it sees are those that Ray has given the run there.

        Raises:
            InputError: a node cannot take part.
        """
        names = distinct_names(self.nodes)

        def probe(argv: Sequence[str]) -> str:
            task = ray.remote(run_probe)
            answers = []
            for number, name in enumerate(names):
                options = self.options(number, with_gpus=True)
                command = [word.replace("{}", name) for word in argv]
                answers.append(task.options(**options, max_retries=0).remote(command, str(Path.cwd())))
            return "\n".join(map(_answer, answers))

        nodes = probed_nodes(names, cluster, run, probe)
        return [replace(nodes[0], address=LOOPBACK)] if len(nodes) == 1 else nodes


def run_probe(argv: Sequence[str], directory: str) -> str:
    """Run a command on this node, and return what it has printed."""
    return subprocess.run(
        argv,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=PROBE_SECONDS,
        check=False,
    ).stdout


def _answer(answer: "ray.ObjectRef[str]") -> str:
    """Wait for what a probe has printed, or return Ray's reason why there is nothing."""
    try:
        printed: str = ray.get(answer, timeout=WORKER_SECONDS + PROBE_SECONDS)
    except RayError as error:
        return reason(error)
    return printed


def reason(error: RayError) -> str:
    """Return the cause, which stands last in a long message of Ray's."""
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__}: {error.cause}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return last.partition(GUESSES)[0]


def distinct_names(nodes: Sequence[RayNode]) -> list[str]:
    """Return the name of each node, with its address where others have the same name."""
    counts = Counter(node.name for node in nodes)
    return [node.name if counts[node.name] == 1 else f"{node.name} at {node.address}" for node in nodes]


@functools.cache
def reserve(address: str, num_nodes: int, fewest_nodes: int) -> Reservation:
    """Reserve nodes for this process, once for all its launchers.

    Raises:
        InputError: no cluster is at the address, or too few nodes are alive or free.
    """
    connect(address)
    nodes = choose_nodes(alive_nodes(), ray.get_runtime_context().get_node_id(), num_nodes)
    if len(nodes) < fewest_nodes:
        raise InputError(
            f"cluster.nodes {num_nodes}: the Ray cluster has {len(nodes)} alive ({_names(nodes)}), and the run needs "
            f"{fewest_nodes}; add some by `ray start --address=…`, or lower cluster.nodes or cluster.min_nodes"
        )
    group = placement_group([node.bundle for node in nodes], strategy="STRICT_SPREAD", name="arl")
    if not group.wait(RESERVE_SECONDS):
        free = ray.available_resources()
        remove_placement_group(group)
        wanted = "; ".join(f"{node.name}: {_amounts(node.resources)}" for node in nodes)
        raise InputError(
            f"cluster.nodes {num_nodes}: a run takes whole nodes ({wanted}), and after {RESERVE_SECONDS:.0f} s others "
            f"still hold a part of them (free in the whole cluster: {_amounts(free)}); see `ray status`, and wait "
            "until they have ended"
        )
    return Reservation(nodes, group)


def connect(address: str) -> None:
    """Make this process a driver of the cluster at `address`.

    Raises:
        InputError: there is none, it refuses this process, or the address is a Ray client's.
    """
    if address.startswith("ray://"):
        raise InputError(
            f"cluster.address {address}: the controller must run on a node of the cluster, because its processes "
            "connect to it; run arl there, by `ray job submit` for instance, with cluster.address auto"
        )
    if ray.is_initialized():
        return
    _refuse_silent_address(address)
    with _signals_kept():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise _no_cluster(address, _first_line(error)) from error


def _refuse_silent_address(address: str) -> None:
    """Raise InputError if nobody listens at an address of the form HOST:PORT; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise _no_cluster(address, error.strerror or str(error)) from error


def _no_cluster(address: str, why: str) -> InputError:
    return InputError(
        f"cluster.address {address}: no Ray cluster can be used there ({why}); start one by `ray start --head` and "
        "`ray start --address=…` on the other machines, or use launcher: local"
    )


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Put the handler of SIGTERM back, which Ray replaces by its own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def alive_nodes() -> list[RayNode]:
    """Ask Ray which nodes are alive."""
    return [
        RayNode(
            id=node["NodeID"],
            name=node["NodeManagerHostname"],
            address=node["NodeManagerAddress"],
            resources={kind: node["Resources"][kind] for kind in PINNED_KINDS if node["Resources"].get(kind)},
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def choose_nodes(alive: Sequence[RayNode], here: str, count: int) -> list[RayNode]:
    """Choose at most `count` nodes: the one of id `here`, where the controller runs, then those with most GPUs."""
    by_preference = sorted(alive, key=lambda node: (node.id != here, -node.resources.get("GPU", 0), node.name))
    return by_preference[:count]


def _names(nodes: Sequence[RayNode]) -> str:
    return ", ".join(node.name for node in nodes)


def _amounts(resources: Mapping[str, float]) -> str:
    """Write amounts of CPUs and GPUs, as in `16 CPU, 8 GPU`."""
    return ", ".join(f"{resources.get(kind, 0):g} {kind}" for kind in PINNED_KINDS)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
