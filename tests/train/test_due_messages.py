"""A message of a rank that is not due ends the run by the name of its sender."""

import asyncio
import contextlib
import os
import platform
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio
from msgspec import Struct

from arl.errors import RunError, TrainerError
from arl.launch.address import LOOPBACK
from arl.launch.trust import RunTrust
from arl.train import channel
from arl.train.algorithms.grpo import GRPO
from arl.train.channel import (
    CLAIMS,
    PUBLISHER,
    SAVER,
    SENDERS,
    TRAINER,
    Claimed,
    Copied,
    Hello,
    Init,
    Join,
    Joined,
    Left,
    Published,
    Ready,
    Saved,
    Send,
    Sent,
    Stopped,
)
from arl.train.channel_access import show_key
from arl.train.trainer_client import TrainerClient
from arl.types import WeightUpdate
from tests.train.workers import DEADLINES, KEY, init

SECONDS = 30
JOINED = Joined("n1", 7, "gloo")


class Threads:
    """Act as threads of ranks, over real connections."""

    def __init__(self, trainer: TrainerClient) -> None:
        self._address = trainer.environment[channel.ADDRESS]
        self._context = zmq.asyncio.Context()

    async def connect(self, role: str, rank: int = 0) -> zmq.asyncio.Socket:
        """Connect a thread, which says Hello."""
        thread = self._context.socket(zmq.DEALER)
        show_key(thread, self._address, KEY)
        thread.connect(self._address)
        await thread.send_multipart([KEY.encode(), channel.encode(hello(role, rank))])
        return thread

    def close(self) -> None:
        self._context.destroy(linger=0)


def hello(role: str, rank: int) -> Hello:
    return Hello(role, rank, platform.node(), os.getpid())


@contextlib.asynccontextmanager
async def listening(tiny: Path, directory: Path) -> AsyncIterator[tuple[TrainerClient, Threads]]:
    """Listen for two ranks, which have not said Hello."""
    broadcast = msgspec.structs.replace(init(tiny, directory), transport="broadcast")
    async with TrainerClient(broadcast, GRPO(), 2, RunTrust(KEY), DEADLINES, host=LOOPBACK) as trainer:
        threads = Threads(trainer)
        try:
            yield trainer, threads
        finally:
            threads.close()


async def received(thread: zmq.asyncio.Socket) -> channel.ToRank:
    return channel.decode_to_rank(await asyncio.wait_for(thread.recv(), SECONDS))


async def get_ready(trainer: TrainerClient, threads: Threads) -> zmq.asyncio.Socket:
    """Start both ranks, and return the thread of rank 0 that opens groups."""
    ranks = [await threads.connect(TRAINER, rank) for rank in range(2)]
    senders = await threads.connect(SENDERS)
    await threads.connect(CLAIMS)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(trainer.ready())
        for rank in ranks:
            assert isinstance(await received(rank), Init)
            await rank.send(channel.encode(Ready(())))
    return senders


PUBLISHED = Published(WeightUpdate(999, "/etc"))
NOT_DUE = [
    (SENDERS, 0, Ready(()), "Ready, which is for another thread"),
    (SENDERS, 0, Sent("it broke"), "Sent, which is for another thread"),
    (CLAIMS, 0, Claimed(5), "Claimed, for which nobody has asked"),
    (CLAIMS, 1, Claimed(5), "Hello of a thread that only rank 0 has"),
    (PUBLISHER, 0, PUBLISHED, "Published of version 999; only versions from 5 to 4"),
    (PUBLISHER, 1, PUBLISHED, "Hello of a thread that only rank 0 has"),
    (TRAINER, 0, PUBLISHED, "Published, which is for another thread"),
    (TRAINER, 1, Copied(), "Copied from rank 1 instead of Hello"),
    (SAVER, 1, Saved(4), "nothing was to be saved"),
    (SAVER, 1, Stopped(), "Stopped, which is for another thread"),
    ("nobody", 0, Stopped(), "Hello of a group that nobody has asked to open"),
]


@pytest.mark.parametrize(("role", "rank", "message", "why"), NOT_DUE)
def test_a_message_that_is_not_due_ends_the_run_by_the_name_of_its_sender(
    tiny: Path, tmp_path: Path, role: str, rank: int, message: Struct, why: str
) -> None:
    async def scene() -> None:
        async with listening(tiny, tmp_path) as (trainer, threads):
            thread = await threads.connect(role, rank)
            await thread.send(channel.encode(message))
            said = re.escape(f"{hello(role, rank)} has sent a message that is not due: {why}")
            with pytest.raises(TrainerError, match=said):
                await asyncio.wait_for(trainer.failure(), SECONDS)

    asyncio.run(scene())


@pytest.mark.parametrize("role", [SENDERS, CLAIMS, SAVER])
def test_a_thread_that_says_hello_again_ends_the_run_by_its_name(tiny: Path, tmp_path: Path, role: str) -> None:
    async def scene() -> None:
        async with listening(tiny, tmp_path) as (trainer, threads):
            thread = await threads.connect(role)
            await thread.send(channel.encode(hello(role, 0)))
            with pytest.raises(TrainerError, match=re.escape(f"{hello(role, 0)} has sent a second Hello")):
                await asyncio.wait_for(trainer.failure(), SECONDS)

    asyncio.run(scene())


@pytest.mark.parametrize("answer", [JOINED, Claimed(5), Left()])
def test_another_answer_of_a_group_than_the_one_that_is_due_is_named(
    tiny: Path, tmp_path: Path, answer: Struct
) -> None:
    async def scene() -> None:
        async with listening(tiny, tmp_path) as (trainer, threads), asyncio.TaskGroup() as tasks:
            senders = await get_ready(trainer, threads)
            joining = tasks.create_task(trainer.join("arl-7", 2))
            assert await received(senders) == Join("arl-7", 2)
            group = await threads.connect("arl-7")
            await group.send(channel.encode(JOINED))
            assert (await asyncio.wait_for(joining, SECONDS)).port == 7
            sending = asyncio.create_task(trainer.send("arl-7", 5))
            assert await received(group) == Send(5)
            await group.send(channel.encode(answer))
            with pytest.raises(RunError, match=r"^arl-7 of trainer rank 0 .*not due|^group arl-7: .*ended without"):
                await asyncio.wait_for(sending, SECONDS)

    asyncio.run(scene())
