"""The trainer's channel takes nothing of strangers, answers by id, and names whoever ends the run."""

import asyncio
import os
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from arl.errors import ProcessDied, RunError, TrainerError
from arl.launch.network import LOOPBACK
from arl.launch.run_secrets import RunSecrets
from arl.train import channel, link, trainer_client
from arl.train.algorithms.advantage import GRPO
from arl.train.channel import Failed, Hello
from arl.train.link import RankConnections, connect
from arl.train.trainer_client import TrainerClient
from tests.train.workers import DEADLINES, init

TRUST = RunSecrets("the run's key")
SECONDS = 30
HELLO = Hello(0, "node-3", os.getpid())


async def say(peers: zmq.asyncio.Context, address: str, *messages: bytes, key: str = TRUST.key) -> None:
    """Connect a rank 0 that knows `key`, and send messages."""
    made = connect(peers, address, key, rank=0)  # type: ignore[arg-type]
    for message in messages:
        await made.send(message)  # type: ignore[misc]


def test_a_client_without_the_key_of_the_run_never_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LINGER_SECONDS", 0)

    async def scene() -> None:
        connections = RankConnections(TRUST, LOOPBACK)
        admitting = asyncio.create_task(connections.admit())
        peers = zmq.asyncio.Context()
        await say(peers, connections.address, channel.encode(HELLO), key="the key of another run")
        knows_the_server = connect(peers, "tcp://127.0.0.1:1", TRUST.key, rank=0)  # type: ignore[arg-type]
        knows_the_server.curve_publickey, knows_the_server.curve_secretkey = zmq.curve_keypair()
        refused = knows_the_server.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        knows_the_server.connect(connections.address)
        await asyncio.wait_for(refused.recv_multipart(), SECONDS)  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connections.receive(), 0.5)
        assert not admitting.done()
        admitting.cancel()
        peers.destroy(linger=0)
        connections.close()

    asyncio.run(scene())


class FakeProcess:
    """A Process that ends when the test says so."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.exit_code: int | None = None
        self._ended = asyncio.Event()

    def end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self._ended.set()

    async def ended(self) -> str:
        await self._ended.wait()
        return f"{self.role} ended with {self.exit_code}"

    async def died(self) -> ProcessDied:
        return ProcessDied(await self.ended())


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([(1, -9), "raised"], "trainer-1 ended with -9"),
        (["raised", (0, 1), (1, -9)], "trainer-1 ended with -9"),
        ([(0, 1), "raised"], "trainer rank 0 (pid PID on node-3) at version 5: its message"),
        ([(0, 0)], "trainer-0 ended with 0"),
    ],
)
def test_a_killed_rank_is_the_cause_else_the_first_traceback_else_the_exit(
    events: list[tuple[int, int] | str], cause: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_client, "SETTLE_SECONDS", 0.5)
    failed = channel.encode(Failed.of("trainer", 5, TrainerError("its message")))

    async def scene() -> None:
        peers = zmq.asyncio.Context()
        async with TrainerClient(init(tiny, tmp_path), GRPO(), 2, TRUST, DEADLINES, host=LOOPBACK) as trainer:
            processes = [FakeProcess("trainer-0"), FakeProcess("trainer-1")]
            for rank, process in enumerate(processes):
                trainer.watch(rank, process)  # type: ignore[arg-type]
            for event in events:
                if isinstance(event, str):
                    await say(peers, trainer.environment[channel.ADDRESS], channel.encode(HELLO), failed)
                else:
                    rank, exit_code = event
                    processes[rank].end(exit_code)
            with pytest.raises(RunError) as caught:
                await trainer.failure()
            assert str(caught.value) == cause.replace("PID", str(os.getpid()))
        peers.destroy(linger=0)

    asyncio.run(scene())
