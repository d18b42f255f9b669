"""List the processes of a run on the wall clock, for status.json.

launcher: role, node, pid; memory on other nodes ─┐
router: load, version                             ├─► ProcessStates.now ─► ProcessStatus of each process
reward pool: pids                                 │
engine pool: joined engines                      ─┘

Nothing is asked over the network: what an engine has last reported to the router, and a node to its launcher, is
shown, however old.
"""

import os
import time
from collections.abc import Sequence

from msgspec import structs

from arl.clock import now
from arl.engine.replica_seats import Replica
from arl.launch.base import Launcher, Process
from arl.launch.process_state import started_at
from arl.metrics.run_status import RUNS, ProcessStatus
from arl.metrics.spans import add_span
from arl.reward.pool import RewardPool
from arl.run.engine_pool import EnginePool

NO_PID = 0  # of a process that its node is still starting
ENGINE = "engine-"  # begins the role of an engine server; its seat follows


class ProcessStates:
    """Read the state of every process, as the controller knows it."""

    def __init__(self, launcher: Launcher, pool: EnginePool, rewards: RewardPool) -> None:
        self._launcher = launcher
        self._pool = pool
        self._nodes = [node.name for node in launcher.nodes]  # reading them may look for devices
        self._router = pool.router
        self._rewards = rewards
        self._began = started_at(os.getpid())
        self._seen: dict[str, list[tuple[int, float]]] = {}  # role -> each pid it has had, and since when

    def now(self) -> list[ProcessStatus]:
        """Return the processes: the controller, those of the launcher, engines that have joined, reward workers."""
        controller = ProcessStatus(
            role="controller",
            node=self._nodes[0],
            pid=os.getpid(),
            since=self._began,
        )
        started = [self._describe(process) for process in self._launcher.processes]
        return [controller, *started, *self._joined_engines(), *self._reward_workers()]

    def _describe(self, process: Process) -> ProcessStatus:
        since, restarts = self._history(process.role, process.pid, process.node)
        code = process.exit_code
        status = ProcessStatus(
            role=process.role,
            node=self._nodes[process.node],
            pid=process.pid,
            state=RUNS if code is None else f"ended, code {code}",
            since=since,
            restarts=restarts,
        )
        replica = self._replica(process.role)
        if replica is None or code is not None:
            return status
        return _with_load(status, replica)

    def _replica(self, role: str) -> Replica | None:
        seat = role.removeprefix(ENGINE)
        if seat == role or not seat.isdecimal():
            return None
        return self._router.replica(int(seat))

    def _joined_engines(self) -> Sequence[ProcessStatus]:
        """Describe the engines that somebody else has started, and that serve."""
        today = time.time()
        return [
            ProcessStatus(
                role=engine.name,
                node=engine.node,
                pid=engine.pid,
                since=today - engine.seconds,
                version=engine.version,
                open_requests=engine.open,
            )
            for engine in self._pool.statuses()
            if engine.state == "joined" and engine.pid is not None
        ]

    def _reward_workers(self) -> Sequence[ProcessStatus]:
        """Describe the reward workers, which always run beside the controller."""
        return [
            ProcessStatus(
                role=f"reward-{number}",
                node=self._nodes[0],
                pid=worker.pid,
                since=started_at(worker.pid),
                open_requests=len(worker.owed),
            )
            for number, worker in enumerate(self._rewards.workers)
            if worker.pid is not None
        ]

    def _history(self, role: str, pid: int, node: int) -> tuple[float | None, int]:
        """Return since when a process runs, and how often its role was started again."""
        pids = self._seen.setdefault(role, [])
        if pid == NO_PID:
            return None, len(pids)
        if pid not in [known for known, _ in pids]:
            since = started_at(pid) if node == 0 else None
            pids.append((pid, since or time.time()))
            add_span(role, "process", f"pid {pid} on {self._nodes[node]} is seen", now(), now())
        return dict(pids)[pid], len(pids) - 1


def _with_load(status: ProcessStatus, replica: Replica) -> ProcessStatus:
    known = structs.replace(status, version=replica.engine.loaded_version, open_requests=replica.open)
    if replica.has_reported:
        load = replica.load
        return structs.replace(
            known,
            running=load.running,
            waiting=load.waiting,
            slots=load.slots,
            cache_tokens=load.tokens,
            cache_capacity=load.capacity,
        )
    return known
