"""Keep the engines of a run: those that it started, and those that have joined it.

    open_engine_pool ─► a supervisor for each started server ────────┐
    join             ─► a connection to one that a command started ──┴─► Router: a slot each
    remove, a loss for good ─► the slot is closed: open requests go on elsewhere and keep their tokens

The run goes on without an engine that is given up while engine.min_replicas others serve or start.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from arl.clock import outer_deadline
from arl.engine.router import Router
from arl.engine.supervisor import EngineSupervisor
from arl.errors import DeadlineError, EngineLost, InputError, ProcessDied, RunError
from arl.launch.base import Process, Resources
from arl.launch.placement import another_place
from arl.metrics.run_status import ProcessStatus
from arl.run.control import ControlAnswer, DescribeRun, JoinEngine, LiveRun, RemoveEngine, Request
from arl.run.processes import EngineServers
from arl.sync.group_sender import GroupSender, WeightSender

BEAT_SECONDS = 2.0  # between two questions to an engine that has joined, which nobody here watches as a process


@dataclass(eq=False)
class Member:
    """Describe one engine of the run."""

    name: str  # its role, as in engine-0
    slot: int
    node: str
    external: JoinEngine | None = None  # as it introduced itself; None: the run has started it
    restarts: int = 0
    process: Process | None = None  # the newest one; None: it is being started, could not be, or is external
    task: asyncio.Task[None] | None = None  # keeps it
    serves: asyncio.Event = field(default_factory=asyncio.Event)  # set when it first serves, or never will
    given_up: RunError | None = None  # why the run goes on without it

    @property
    def pid(self) -> int | None:
        """Return its process id on its node; None: it is being started."""
        known = self.external or self.process
        return (known and known.pid) or None

    def __str__(self) -> str:
        return self.name if self.pid is None else f"{self.name} (pid {self.pid} on {self.node})"


@dataclass(eq=False)
class EnginePool:
    """Start, watch and remove the engines of a run; see `open_engine_pool`."""

    _servers: EngineServers
    _others: Sequence[Resources]
    _note: Callable[[str], None]
    _sender: GroupSender | None
    _tasks: asyncio.TaskGroup
    members: dict[str, Member] = field(default_factory=dict)  # those that serve, or that are being started

    def __post_init__(self) -> None:
        self._recipe = self._servers.recipe
        self._nodes = list(self._servers.launcher.nodes)  # asking for them may ask the driver of the GPUs
        self.router = Router([None] * len(self._servers.resources), sender=self._sender)

    async def keep_started(self, started: Sequence[Process]) -> None:
        """Take over the servers of the start, one for each slot, and wait until all of them serve."""
        for slot, process in enumerate(started):
            member = Member(process.role, slot, self._node_name(slot), process=process)
            self._keep(member, self._supervise(member, process))
        for member in list(self.members.values()):
            await member.serves.wait()  # or its task ends the group, within the deadlines of a start

    # ---- changes

    async def answer(self, request: Request, describe: Callable[[], Awaitable[LiveRun]]) -> ControlAnswer:
        """Do what a command asks for; `describe` describes the run, but for its engines.

        Raises:
            InputError: it must not be done.
            RunError: it failed.
        """
        match request:
            case DescribeRun():
                return ControlAnswer(run=structs.replace(await describe(), engines=list(self.statuses())))
            case JoinEngine():
                return ControlAnswer(done=await self.join(request))
            case RemoveEngine(name):
                return ControlAnswer(done=await self.remove(name))

    async def join(self, engine: JoinEngine) -> str:
        """Give a slot to an engine that a command has started, once it has the newest weights; say so.

        Raises:
            RunError: it does not answer, or cannot load the weights; the run goes on without it.
        """
        slot = self.router.open_slot()
        self._servers.resources[slot] = Resources(threads=1)  # only where it runs they are known, and granted
        member = Member(engine.name, slot, engine.node, external=engine)
        self._keep(member, self._keep_external(member, engine.url))
        await member.serves.wait()
        if member.given_up is not None:
            raise member.given_up
        done = f"{member} joined and serves version {self.router.loaded_version}; {self._count()}"
        self._note(done)
        return done

    async def remove(self, name: str) -> str:
        """Remove an engine, and say how many of its open requests go on elsewhere, with their tokens.

        Raises:
            InputError: there is no such engine, or none would be left.
        """
        if name not in self.members:
            raise InputError(f"{name}: the run has no such engine; it has {', '.join(self.members)}")
        if len(self.members) == 1:
            raise InputError(f"{name}: is the run's only engine; have another one join first")
        member = self.members[name]
        replica = self.router.replica(member.slot)
        num_moved = 0 if replica is None else replica.open
        self._forget(member, EngineLost(f"{name} was removed"))
        if member.task is not None:
            member.task.cancel()
            await asyncio.wait({member.task}, timeout=self._recipe.deadlines.swap)
        if member.process is not None:
            await member.process.stop(self._recipe.deadlines.shutdown)
        done = f"{member} was removed; {num_moved} open requests go on elsewhere; {self._count()}"
        self._note(done)
        return done

    # ---- what keeps a member

    def _keep(self, member: Member, work: Coroutine[None, None, None]) -> None:
        self.members[member.name] = member
        member.task = self._tasks.create_task(self._watch(member, work), name=f"watcher of {member.name}")

    async def _watch(self, member: Member, work: Coroutine[None, None, None]) -> None:
        """Go on without a member that is lost, or end the run.

        Raises:
            RunError: the run cannot go on without it.
        """
        try:
            await work
        except RunError as why:
            if member.given_up is not None:  # it was removed: nobody asks any more what it answers
                return
            has_served = member.serves.is_set()
            if member.external is None and not (has_served and isinstance(why, ProcessDied)):
                raise
            left = len(self.members) - 1
            fewest = self._recipe.engine.fewest_replicas if has_served else 1
            if left < fewest:
                raise ProcessDied(f"{why}\n{left} engines are left, and engine.min_replicas is {fewest}") from why
            self._forget(member, why)
            self._note(f"{member} is given up: {why}\nThe run goes on; {self._count()}")

    def _forget(self, member: Member, why: RunError) -> None:
        member.given_up = why
        member.serves.set()
        self.router.close_slot(member.slot, why)
        del self.members[member.name]

    async def _supervise(self, member: Member, process: Process) -> None:
        """Watch over a server that the launcher has started."""
        supervisor = EngineSupervisor(
            self.router,
            member.slot,
            start=lambda: self._start(member),
            connect=lambda url: self._servers.connect(url, self._sender, member.slot),
            startup_seconds=self._recipe.deadlines.startup,
            max_restarts=self._recipe.engine.max_restarts,
            note=self._note,
            has_served=member.serves,
        )
        await supervisor.supervise(process)

    async def _start(self, member: Member) -> Process:
        """Start the server of a member, on another node if its own is lost.

        A full disk is the end of this engine, and not of the run.

        Raises:
            ProcessDied: its node is lost, and no other one has room; or it cannot be started.
        """
        launcher = self._servers.launcher
        resources = self._servers.resources[member.slot]
        if resources.node in launcher.lost_nodes:
            ours = [self._servers.resources[other.slot] for other in self.members.values() if not other.external]
            others = [other for other in (*ours, *self._others) if other is not resources]
            place = another_place(resources, others, self._nodes, launcher.lost_nodes)
            if place is None:
                raise ProcessDied(f"{member.name}: its node {member.node} is lost, and no other node has room for it")
            self._servers.resources[member.slot] = place
            member.node = self._node_name(member.slot)
        member.process = None
        try:
            async with outer_deadline(self._recipe.deadlines.startup, "controller", f"{member.name} to be started"):
                member.process = await self._servers.start(member.slot)
        except (OSError, DeadlineError) as error:
            raise ProcessDied(f"{member.name} cannot be started: {error}") from error
        member.restarts += 1
        return member.process

    def _node_name(self, slot: int) -> str:
        return self._nodes[self._servers.resources[slot].node].name

    async def _keep_external(self, member: Member, url: str) -> None:
        """Connect to an engine that has joined, slot it, and ask for its load until it is lost.

        Waits for its answers, which have a deadline, and for the router, which may find out first.

        Raises:
            RunError: it is lost.
        """
        startup = self._recipe.deadlines.startup
        async with self._servers.connect(url, self._sender, member.slot) as engine:
            async with outer_deadline(startup, "controller", f"{member} to load the newest weights"):
                replica = await self.router.fill(member.slot, engine, external=member.name)
            member.serves.set()
            while replica.loss is None:
                await engine.report()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(replica.lost.wait(), BEAT_SECONDS)
            raise replica.loss

    # ---- what is said of members

    def _count(self) -> str:
        return "it has 1 engine" if len(self.members) == 1 else f"it has {len(self.members)} engines"

    def statuses(self) -> Iterator[ProcessStatus]:
        """Describe every engine."""
        for member in self.members.values():
            row = ProcessStatus(role=member.name, node=member.node, pid=member.pid, restarts=member.restarts or None)
            replica = self.router.replica(member.slot)
            if replica is None:
                yield structs.replace(row, state="restarting" if member.serves.is_set() else "starting")
                continue
            load = replica.load
            yield structs.replace(
                row,
                state="joined" if member.external else None,
                version=replica.engine.loaded_version,
                open=replica.open,
                slots=f"{load.running}/{load.slots}",
                waiting=load.waiting,
                cache=f"{load.tokens / max(load.capacity, 1):.0%}",
            )


@contextlib.asynccontextmanager
async def open_engine_pool(
    servers: EngineServers,
    started: Sequence[Process],
    note: Callable[[str], None],
    trainer: WeightSender | None = None,
    others: Sequence[Resources] = (),
) -> AsyncIterator[EnginePool]:
    """Yield the pool of the started servers, once all of them serve. A server that dies is replaced.

    Args:
        servers: start a server again, and connect to it.
        started: by slot of the router.
        note: is called with one line for each change.
        trainer: broadcasts weights, where that is their transport.
        others: resources of the run's other processes, which no engine may take.
    """
    sender = None if trainer is None else GroupSender(trainer)
    async with asyncio.TaskGroup() as tasks:
        pool = EnginePool(servers, others, note, sender, tasks)
        try:
            await pool.keep_started(started)
            yield pool
        finally:
            for member in pool.members.values():  # the launcher stops the processes
                if member.task is not None:
                    member.task.cancel()
