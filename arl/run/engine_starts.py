"""Start the engines of a run, and end those whose start nobody waits for any more.

start ─► a task of its own: the launcher starts the process ─► Process
                                    │
  the run ends, `arl engines remove` ─► end_start: it is stopped as soon as it has started, or given up at a deadline
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence

from arl.clock import outer_deadline
from arl.errors import DeadlineError, ProcessDied
from arl.launch.base import Process, Resources
from arl.launch.seats import another_place
from arl.run.engine_member import Member
from arl.run.engines import EngineServers


class EngineStarts:
    """Start engines by the run's launcher.

    Args:
        servers: starts a server. Its resources are those of the engines of the start, by seat.
        members: of the pool, by name.
        neighbors: resources of the run's other processes, which no engine may take.
    """

    def __init__(self, servers: EngineServers, members: Mapping[str, Member], neighbors: Sequence[Resources]) -> None:
        self.resources = {seat: servers.resources[seat] for seat in range(len(servers.resources))}
        self.servers = dataclasses.replace(servers, resources=self.resources)
        self._members = members
        self._neighbors = neighbors
        self._deadlines = servers.recipe.deadlines
        nodes = servers.launcher.nodes  # asking for them may ask the driver of the GPUs
        self._nodes = list(nodes)

    def node_name(self, seat: int) -> str:
        """Return the name of the node on which the engine of a seat is started."""
        return self._nodes[self.resources[seat].node].name

    def taken(self) -> list[Resources]:
        """Return the resources of all processes of the run."""
        ours = [self.resources[member.seat] for member in self._members.values() if member.guest is None]
        return [*ours, *self._neighbors]

    async def start(self, member: Member) -> Process:
        """Start the server of a member, on another node if its own is lost.

        Whoever stops waiting for it leaves it to `end_start`.

        Raises:
            ProcessDied: its node is lost, and no other one has room; or it cannot be started.
        """
        self._move_from_lost_node(member)
        starting = asyncio.create_task(self._start(member), name=f"start of {member.name}")
        member.process = starting
        await asyncio.wait({starting})
        if starting.cancelled():
            raise ProcessDied(f"{member.name}: its start was given up")
        return starting.result()

    async def end_start(self, member: Member) -> str:
        """Stop a process that is being started as soon as it has started, or give its start up at a deadline.

        Returns:
            What kept it from starting; empty: it had started.
        """
        starting = member.process
        assert starting is not None
        seconds = self._deadlines.shutdown
        await asyncio.wait({starting}, timeout=seconds)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting}, timeout=seconds)
            return f"{member.name}: its start was given up after {seconds:g} s (deadlines.shutdown)"
        process = member.started
        if process is None:
            return str(starting.exception())
        await process.stop(seconds)
        return ""

    async def _start(self, member: Member) -> Process:
        """Start the server of a member. A full disk is the end of this engine, and not of the run."""
        seconds = self._deadlines.startup
        try:
            async with outer_deadline(seconds, "controller", f"{member.name} to be started"):
                return await self.servers.start(member.seat)
        except (OSError, DeadlineError) as error:
            raise ProcessDied(f"{member.name} cannot be started: {error}") from error

    def _move_from_lost_node(self, member: Member) -> None:
        """Give a member whose node is lost a place on another one.

        Raises:
            ProcessDied: no other node has room.
        """
        lost = self.servers.launcher.lost_nodes
        resources = self.resources[member.seat]
        if resources.node not in lost:
            return
        others = [other for other in self.taken() if other is not resources]
        place = another_place(resources, others, self._nodes, lost)
        if place is None:
            raise ProcessDied(f"{member.name}: its node {member.node} is lost, and no other node has room for it")
        self.resources[member.seat] = place
        member.node = self.node_name(member.seat)
