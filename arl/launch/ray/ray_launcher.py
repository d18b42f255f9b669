"""Start the processes of a run on the nodes of a Ray cluster that is there, each as the child of an actor of its own.

    reserve ─► probe ─► nodes
    start(role, command, resources) ─► secret file ─► ChildActor on that node ─► RayProcess ─► logs/<role>.log
    end of the context ─► SIGTERM to all ─► SIGKILL after `patience` seconds ─► the actors end

Nothing is detached: when the controller dies, Ray ends its actors, and the kernel their children.
"""

import asyncio
import contextlib
import functools
import importlib
import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from arl.clock import deadline
from arl.config.cluster_section import Cluster
from arl.errors import DeadlineError, InputError, ProcessDied
from arl.launch.address import HOST
from arl.launch.base import Command, Node, Resources
from arl.launch.child import PARENT, RUN_KEY
from arl.launch.grants import granted_environment
from arl.launch.secret_file import PREFIX, write_secret_file

# Ray is optional, and importing it takes a while: what imports it is imported where it is used.
if TYPE_CHECKING:
    from ray.exceptions import RayError

    from arl.launch.ray.ray_process import RayProcess
    from arl.launch.ray.reservation import Reservation

ARL = "ARL_"  # begins the variables of the controller that its processes get as well, wherever they are
NOT_SENT = (PARENT, RUN_KEY)
HEAD_SECONDS = 30.0  # for the head of the cluster to answer a question
START_SECONDS = 120.0  # for Ray to start a worker, and the worker the process


class RayLauncher:
    """Launch processes on the nodes of a Ray cluster; see arl.launch.base.Launcher.

    Args:
        logs: directory of the logs, made when the context is entered; every node sees it.
        patience: seconds from SIGTERM to SIGKILL at the end of the context.
        cluster: of the recipe.

    Raises:
        InputError: Ray is not installed.
    """

    def __init__(self, logs: Path, patience: float, cluster: Cluster) -> None:
        _refuse_without_ray()
        self._logs = logs
        self._patience = patience
        self._cluster = cluster
        self._processes: list[RayProcess] = []
        self._lost: frozenset[int] = frozenset()
        self._secrets: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        self._secrets = tempfile.TemporaryDirectory(prefix=PREFIX, dir=self._logs.parent)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stops = [process.stop(self._patience) for process in self._processes]
        try:
            await asyncio.shield(asyncio.gather(*stops))
        finally:
            assert self._secrets is not None
            self._secrets.cleanup()  # with the files of processes that have never begun

    @property
    def nodes(self) -> Sequence[Node]:
        return self._reservation.probed_nodes(self._cluster, self._logs.parent)

    @property
    def lost_nodes(self) -> Collection[int]:
        return self._lost

    @property
    def shares_files(self) -> bool:
        return True  # nodes that do not see the run directory are refused

    @property
    def logs(self) -> Path:
        return self._logs

    @property
    def processes(self) -> Sequence["RayProcess"]:
        return self._processes

    async def start(
        self, role: str, command: Command, resources: Resources, on_line: Callable[[str], None] | None = None
    ) -> "RayProcess":
        from arl.launch.ray.ray_process import RayProcess

        node = self.nodes[resources.node]
        await self._find_lost_nodes()
        if resources.node in self._lost:
            raise ProcessDied(f"{role} cannot be started: Ray has given up node {node.name}")
        actor = self._make_actor(resources.node)
        assert self._secrets is not None, "the launcher is not entered"
        secrets = write_secret_file(Path(self._secrets.name), role, command.secrets)
        environment = self._environment(command, resources)
        starting = actor.start.remote(command.argv, environment, secrets, os.getcwd())
        pid = await self._started(actor, role, starting, node.name)
        process = RayProcess(
            role,
            self._logs / f"{role}.log",
            on_line,
            actor=actor,
            pid=pid,
            node=resources.node,
            node_name=node.name,
            describe_loss=functools.partial(self._describe_loss, resources.node),
        )
        await self._replace_dead(process)
        return process

    def _make_actor(self, node: int) -> Any:
        import ray

        from arl.launch.ray.child_actor import ChildActor

        return ray.remote(ChildActor).options(**self._reservation.options(node)).remote()

    async def _started(self, actor: Any, role: str, starting: Any, node: str) -> int:
        """Wait until a command has started in its actor, and return its process id.

        Raises:
            ProcessDied: it cannot be started there.
        """
        import ray
        from ray.exceptions import RayError

        from arl.launch.ray.reservation import reason

        try:
            async with asyncio.timeout(START_SECONDS):
                pid: int = await starting
        except TimeoutError as error:
            ray.kill(actor)
            raise ProcessDied(
                f"{role} cannot be started: Ray has started no worker on {node} within {START_SECONDS:.0f} s"
            ) from error
        except RayError as error:
            ray.kill(actor)
            raise ProcessDied(f"{role} cannot be started on {node} (Ray: {reason(error)})") from error
        return pid

    def _environment(self, command: Command, resources: Resources) -> dict[str, str]:
        """Return the variables that are added to those of the node."""
        own = {name: value for name, value in os.environ.items() if name.startswith(ARL) and name not in NOT_SENT}
        return {
            **own,
            **command.environment,
            **granted_environment(resources),
            HOST: self.nodes[resources.node].address,
        }

    async def _find_lost_nodes(self) -> None:
        """Ask Ray which nodes are dead. Its head may take long to answer, so a thread waits for it.

        Raises:
            DeadlineError: it does not answer.
        """
        async with deadline(HEAD_SECONDS, "launcher", "the head of the Ray cluster to say which nodes are alive"):
            self._lost = await asyncio.to_thread(self._reservation.lost_nodes)

    async def _describe_loss(self, node: int, error: "RayError | None") -> str:
        """Say how a process has ended whose actor is dead; no error: its worker does not answer, and is given up."""
        from ray.exceptions import RayError

        from arl.launch.ray.reservation import reason

        with contextlib.suppress(DeadlineError, RayError):  # the loss of the process is what matters here
            await self._find_lost_nodes()
        name = self.nodes[node].name
        where = f"its node {name}" if node in self._lost else f"its Ray worker on {name}"
        if error is None:
            return f"was given up, because {where} does not answer"
        return f"was lost with {where} (Ray: {reason(error)})"

    async def _replace_dead(self, process: "RayProcess") -> None:
        """Remember a process in the place of its dead predecessors, and then end their actors.

        It is remembered first, so that it is stopped even if a cancellation comes meanwhile.
        """
        dead = [p for p in self._processes if p.role == process.role and p.exit_code is not None]
        self._processes = [p for p in self._processes if p not in dead]
        self._processes.append(process)
        for predecessor in dead:
            await predecessor.stop(0.0)

    @property
    def _reservation(self) -> "Reservation":
        from arl.launch.ray.reservation import reserve

        return reserve(self._cluster.address, self._cluster.nodes, self._cluster.fewest_nodes)


def _refuse_without_ray() -> None:
    try:
        importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise InputError(
            "launcher ray: Ray is not installed; pip install -e '.[ray]' in arl's clone on every node, "
            "or use launcher: local"
        ) from error
