"""A run over several nodes hangs: the message says of each process what keeps it from running on its own node."""

import asyncio
from dataclasses import dataclass

import psutil
import pytest

from arl.errors import DeadlineError, TrainerError
from arl.launch.base import Node
from arl.launch.spawn import RUNS, STATES
from arl.run.failures import explain_deaths

STOPPED = STATES[psutil.STATUS_STOPPED]


@dataclass(eq=False)
class RemoteProcess:
    """A Process on a node, in the state that the test gives it."""

    role: str
    node: int
    phrase: str = RUNS
    pid: int = 17  # every node counts on its own
    exit_code: int | None = None

    def __str__(self) -> str:
        return f"{self.role} (pid {self.pid} on n{self.node})"

    async def state(self) -> str:
        return self.phrase

    async def ended(self) -> str:
        end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await end

    def log_tail(self) -> str:
        return f"The end of {self.role}.log"


class Cluster:
    """A Launcher whose first node is n0."""

    def __init__(self, *processes: RemoteProcess) -> None:
        self.processes = processes
        self.nodes = [Node(f"n{number}", cores=2) for number in range(3)]


def message_of(error: Exception, *processes: RemoteProcess) -> str:
    """Return what is reported of `error`, of a run that consists of `processes`."""

    async def main() -> None:
        async with explain_deaths(Cluster(*processes)):  # type: ignore[arg-type]
            raise error

    with pytest.raises(type(error)) as raised:
        asyncio.run(main())
    return str(raised.value)


def test_a_stopped_process_is_named_although_another_node_has_a_process_of_the_same_id() -> None:
    waited = DeadlineError("controller waited 30 s for trainer rank 0 (pid 17 on n2)")
    message = message_of(waited, RemoteProcess("engine-1", 1, STOPPED), RemoteProcess("trainer-0", 2))
    assert "\nengine-1 (pid 17 on n1) is stopped by a signal (SIGSTOP?).\nThe end of engine-1.log" in message
    assert "\ntrainer-0" not in message


def test_a_trainer_that_did_not_answer_the_engines_is_described_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arl.run.failures.DEATH_SECONDS", 0.01)
    failed = TrainerError("trainer rank 0 opens no group for a broadcast: waited 20 s")
    failed.__cause__ = DeadlineError("waited 20 s")
    message = message_of(failed, RemoteProcess("engine-1", 1), RemoteProcess("trainer-0", 2, STOPPED))
    assert "trainer-0 (pid 17 on n2) is stopped by a signal" in message
