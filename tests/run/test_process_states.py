"""What is known of the processes of a run, for status.json."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from arl import clock
from arl.launch.base import Node
from arl.run.status_writer import NO_PID, ProcessStates


@dataclass
class StartedProcess:
    """A process on another node, as far as its state is asked for."""

    role: str
    pid: int
    node: int = 1
    exit_code: int | None = None


def states_of(process: StartedProcess) -> ProcessStates:
    """Return the states of a run that consists of its controller and one process."""
    launcher = SimpleNamespace(nodes=[Node("n0", cores=2), Node("n1", cores=2)], processes=[process])
    pool = SimpleNamespace(router=SimpleNamespace(replica=lambda seat: None), statuses=list)
    rewards = SimpleNamespace(pid=None)
    return ProcessStates(cast(Any, launcher), cast(Any, pool), cast(Any, rewards))


def test_a_process_that_its_node_is_still_starting_was_not_started_again() -> None:
    async def watch() -> None:
        process = StartedProcess("engine-0", NO_PID)
        states = states_of(process)
        _, starting = states.now()
        assert (starting.since, starting.restarts) == (None, 0)
        process.pid = 17
        _, first = states.now()
        assert first.since is not None
        assert first.restarts == 0
        process.pid = NO_PID
        assert states.now()[1].restarts == 1
        process.pid = 18
        assert states.now()[1].restarts == 1

    clock.run(watch, virtual=True)
