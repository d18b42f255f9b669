"""Start the processes of a run on the nodes of a Ray cluster that is there, each as the child of an actor of its own.

    address ─► connect ─► choose_nodes: this node first ─► placement group of one bundle a node ─► probe ─► nodes
    start(role, command, resources) ─► secret file ─► ChildActor on that node ─► RayProcess ─► logs/<role>.log
    end of the context ─► SIGTERM to all ─► SIGKILL after `patience` seconds ─► the actors end

A run takes whole nodes: the bundle of a node holds all of its CPUs and GPUs, and arl.launch.placement divides them.
Nothing is detached: when the controller dies, Ray ends its actors, and the kernel their children (arl.launch.child).
"""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from arl.clock import deadline
from arl.config.cluster_section import Cluster
from arl.errors import DeadlineError, InputError, ProcessDied
from arl.launch.base import Command, Launcher, Node, OnLine, Process, Resources
from arl.launch.child import PARENT, RUN_KEY
from arl.launch.network import HOST, LOOPBACK, interface_environment
from arl.launch.nodes import probed_nodes
from arl.launch.process import OUTPUT_SECONDS, PIECE, PipedChild, Role, start_child
from arl.launch.run_secrets import take_variables
from arl.launch.spawn import signal_all

RAY = "RAY_"  # begins the variables of Ray's own, its token among them
END_SECONDS = 20.0  # for a Ray worker to answer when its process is killed; Ray kills the worker then, if it still can
ARL = "ARL_"  # begins the variables of the controller that its processes get as well, wherever they are
NOT_SENT = (PARENT, RUN_KEY)
CONNECT_SECONDS = 10.0
RESERVE_SECONDS = 60.0  # for what another run held until just now
HEAD_SECONDS = 30.0  # for the head of the cluster to answer a question
PROBE_SECONDS = 120.0  # for Python on a slow file system
START_SECONDS = 120.0  # for Ray to start a worker, and the worker the process
PIN = 0.001  # of a node's own resource, which pins a bundle to the node
KINDS = ("CPU", "GPU")
GUESSES = " Some common causes include"  # begins what Ray adds to a cause that it does not know


class ChildActor:
    """Hold one command on its node, from its start to its end."""

    _child: PipedChild

    async def start(self, argv: Sequence[str], environment: Mapping[str, str], secrets: str, directory: str) -> int:
        """Start the command, and return its process id.

        Args:
            argv: program and arguments.
            environment: variables that are added to those of this node, without Ray's own; the address among them.
            secrets: file with more of them.
            directory: in which it runs.
        """
        os.chdir(directory)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(RAY)}
        own = {**environment, **interface_environment(environment[HOST]), **take_variables(secrets)}
        self._child = await start_child(argv, own, inherited=inherited)
        return self._child.process.pid

    async def read(self) -> bytes:
        """Wait for the next piece of output; empty: there is no more."""
        return await self._child.output.read(PIECE)

    async def wait(self) -> int:
        """Wait until the command has ended, and return its exit code."""
        return await self._child.process.wait()

    async def kill(self, number: int) -> None:
        """Send a signal to the command and to what it has started."""
        signal_all(self._child.process, signal.Signals(number))


class RayProcess(Process):
    """Watch one process on a node of a Ray cluster.

    Args:
        actor: handle of its ChildActor, which has started it.
        pid: its process id on its node.
        describe_loss: says what has happened to the actor, by Ray's error.
    """

    def __init__(self, role: Role, actor: Any, pid: int, describe_loss: Callable[[RayError], Awaitable[str]]) -> None:
        self._actor = actor
        self._has_actor = True
        self._pid = pid
        self._describe_loss = describe_loss
        self._loss = ""  # what has happened to its actor
        self._following = asyncio.create_task(self._follow(), name=f"end of {role.name}")
        super().__init__(role)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exit_code(self) -> int | None:
        return self._following.result() if self._following.done() else None

    async def _follow(self) -> int:
        """Wait for its exit code, which its actor reports, or for the end of the actor, which Ray reports."""
        try:
            code: int = await self._actor.wait.remote()
        except RayError as error:
            self._has_actor = False
            self._loss = await self._describe_loss(error)
            return -signal.SIGKILL
        return code

    async def _wait(self) -> object:
        return await asyncio.shield(self._following)

    async def _read(self) -> bytes:
        try:
            piece: bytes = await self._actor.read.remote()
        except RayError:  # `_follow` reports it
            return b""
        return piece

    def _signal(self, number: signal.Signals) -> None:
        if self._has_actor:  # Ray would complain about each call to an actor that is gone
            self._actor.kill.remote(int(number))

    async def _end(self) -> None:
        """Kill it with everything in its session, read the rest of its output, and end its actor.

        A Ray worker that does not answer in time is killed, and the kernel kills its child.
        """
        if self._has_actor:
            with contextlib.suppress(TimeoutError, RayError):
                async with asyncio.timeout(END_SECONDS):
                    await self._actor.kill.remote(int(signal.SIGKILL))
                    await self._wait()
                    await asyncio.wait({self._copying}, timeout=OUTPUT_SECONDS)
            self._has_actor = False
            ray.kill(self._actor)
        await self._wait()

    def _how_it_ended(self) -> str:
        return self._loss or super()._how_it_ended()


class Reservation(NamedTuple):
    """Hold the nodes of a run, the controller's first; bundle i of the group is node i."""

    names: Sequence[str]
    ids: Sequence[str]  # Ray's, of this life of a node; one that comes back has another
    bundles: Sequence[Mapping[str, float]]
    group: PlacementGroup

    def options(self, node: int, with_gpus: bool = False) -> dict[str, Any]:
        """Return the options of an actor or a task on a node.

        Args:
            with_gpus: Ray shows it the GPUs of the bundle, in CUDA_VISIBLE_DEVICES.
        """
        gpus = self.bundles[node].get("GPU", 0) if with_gpus else 0
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=node)
        return {"num_cpus": 0, "num_gpus": gpus, "scheduling_strategy": strategy}


class RayLauncher(Launcher):
    """Launch processes on the nodes of a Ray cluster; see arl.launch.base.Launcher.

    Args:
        cluster: of the recipe.
    """

    def __init__(self, logs: Path, patience: float, cluster: Cluster) -> None:
        super().__init__(logs, patience)
        self._cluster = cluster

    @property
    def _reservation(self) -> Reservation:
        return reserve(self._cluster.address, self._cluster.nodes, self._cluster.fewest_nodes)

    @property
    def nodes(self) -> Sequence[Node]:
        """Look at every node; the GPUs that it sees are those that Ray has given the run there."""
        nodes = probed_nodes(self._reservation.names, self._cluster, self.logs.parent, self._run_on_all)
        return [replace(nodes[0], address=LOOPBACK)] if len(nodes) == 1 else nodes

    def _run_on_all(self, argv: Sequence[str]) -> str:
        """Run a command on each node, and return all that they have printed, or why Ray runs nothing there."""
        answers = []
        for number, name in enumerate(self._reservation.names):
            options = self._reservation.options(number, with_gpus=True)
            command = [word.replace("{}", name) for word in argv]
            how = {"cwd": os.getcwd(), "capture_output": True, "text": True, "timeout": PROBE_SECONDS}
            answers.append(ray.remote(subprocess.run).options(**options, max_retries=0).remote(command, **how))
        printed = []
        for answer in answers:
            try:
                done = ray.get(answer, timeout=START_SECONDS + PROBE_SECONDS)
                printed.append(done.stdout + done.stderr)
            except RayError as error:
                printed.append(reason(error))
        return "\n".join(printed)

    async def start(self, role: str, command: Command, resources: Resources, on_line: OnLine = None) -> Process:
        node = self.nodes[resources.node]
        await self._find_lost_nodes()
        if resources.node in self.lost_nodes:
            raise ProcessDied(f"{role} cannot be started: node {node.name} has failed")
        given = {name: value for name, value in os.environ.items() if name.startswith(ARL) and name not in NOT_SENT}
        environment = {**given, **command.environment, **resources.environment, HOST: node.address}
        secrets = self._write_secrets(role, command.secrets)
        actor: Any = ray.remote(ChildActor).options(**self._reservation.options(resources.node)).remote()
        try:
            async with asyncio.timeout(START_SECONDS):
                pid = await actor.start.remote(command.argv, environment, secrets, os.getcwd())
        except (TimeoutError, RayError) as error:
            ray.kill(actor)
            why = reason(error) if isinstance(error, RayError) else f"no worker within {START_SECONDS:.0f} s"
            raise ProcessDied(f"{role} cannot be started on {node.name} (Ray: {why})") from error
        own = Role(role, self.logs / f"{role}.log", on_line, resources.node, node.name)
        process = RayProcess(own, actor, pid, functools.partial(self._describe_loss, resources.node))
        self._remember(process)
        return process

    async def _find_lost_nodes(self) -> None:
        """Ask Ray which nodes are dead. Its head may take long to answer, so a thread waits for it.

        Raises:
            DeadlineError: it does not answer.
        """
        async with deadline(HEAD_SECONDS, "launcher", "the head of the Ray cluster to say which nodes are alive"):
            alive = {node["NodeID"] for node in await asyncio.to_thread(alive_nodes)}
        self.lost_nodes = {number for number, node in enumerate(self._reservation.ids) if node not in alive}

    async def _describe_loss(self, node: int, error: RayError) -> str:
        """Say how a process has ended whose actor is dead."""
        with contextlib.suppress(DeadlineError, RayError):  # the loss of the process is what matters here
            await self._find_lost_nodes()
        name = self.nodes[node].name
        where = f"its node {name}" if node in self.lost_nodes else f"its Ray worker on {name}"
        return f"was lost with {where} (Ray: {reason(error)})"


def reason(error: RayError) -> str:
    """Return the cause, which stands last in a long message of Ray's."""
    last = str(error).strip().rpartition("\n")[2].strip()
    return last.partition(GUESSES)[0] or type(error).__name__


@functools.cache
def reserve(address: str, num_nodes: int, fewest_nodes: int) -> Reservation:
    """Reserve nodes for this process, once for all its launchers.

    Raises:
        InputError: no cluster is at the address, or too few nodes are alive or free.
    """
    connect(address)
    nodes = choose_nodes(alive_nodes(), ray.get_runtime_context().get_node_id(), num_nodes)
    names = [node["NodeManagerHostname"] for node in nodes]
    addresses = [node["NodeManagerAddress"] for node in nodes]
    if len(set(names)) < len(names):
        names = addresses
    named = ", ".join(names)
    if len(nodes) < fewest_nodes:
        raise InputError(
            f"cluster.nodes {num_nodes}: the Ray cluster has {len(nodes)} alive ({named}), and the run needs "
            f"{fewest_nodes}; add some by `ray start --address=…`, or lower cluster.nodes or cluster.min_nodes"
        )
    bundles = []
    for node, address in zip(nodes, addresses, strict=True):
        whole = {kind: node["Resources"][kind] for kind in KINDS if node["Resources"].get(kind)}
        bundles.append({f"node:{address}": PIN, **whole})
    group = placement_group(bundles, strategy="STRICT_SPREAD", name="arl")
    if not group.wait(RESERVE_SECONDS):
        remove_placement_group(group)
        raise InputError(
            f"cluster.nodes {num_nodes}: a run takes whole nodes ({named}), and after {RESERVE_SECONDS:.0f} s others "
            "still hold a part of them; see `ray status`, and wait until they have ended"
        )
    return Reservation(names, [node["NodeID"] for node in nodes], bundles, group)


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
    handler = signal.getsignal(signal.SIGTERM)
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdecimal():  # Ray would try for minutes to reach an address at which nobody listens
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, ignore_reinit_error=True)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        why = str(error).strip().partition("\n")[0]
        raise InputError(
            f"cluster.address {address}: no Ray cluster can be used there ({why}); start one by `ray start --head` and "
            "`ray start --address=…` on the other machines, or use launcher: local"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # which Ray replaces by its own


def alive_nodes() -> list[dict[str, Any]]:
    """Ask Ray which nodes are alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def choose_nodes(alive: Sequence[dict[str, Any]], here: str, count: int) -> list[dict[str, Any]]:
    """Choose at most `count` nodes: the one of id `here`, where the controller runs, then those with most GPUs."""
    by_name = sorted(alive, key=lambda node: str(node["NodeManagerHostname"]))
    return sorted(by_name, key=lambda node: (node["NodeID"] != here, -node["Resources"].get("GPU", 0)))[:count]
