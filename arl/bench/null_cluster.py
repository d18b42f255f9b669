"""Open a world whose engines are HTTP servers of their own processes, without a model. Torch-free.

problems ─► Controller ─► Episodes ─► Session ─► Router ─► HttpEngine × N ─► sockets ─► arl.bench.null_server × K
              ▲  │                       └► NullRewards
              └──┴► HeldTrainer: trains at once, and publishes when it is told to
"""

import asyncio
import contextlib
import itertools
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
from msgspec import Struct

from arl.bench.null import NullCodec, NullRewards, NullTrainer
from arl.bench.null_answer import Totals
from arl.clock import deadline
from arl.config.capabilities import KvPolicy
from arl.engine.http.connection import Http
from arl.engine.http.engine_client import HttpEngine
from arl.engine.router import Router
from arl.errors import RunError
from arl.run.world import Parts, Start, recipe_parts
from arl.types import Problem, WeightUpdate

START_SECONDS = 60.0
END_SECONDS = 20.0
COMMAND_SECONDS = 120.0  # long, because an overloaded controller is what is measured
PROMPT_IDS = tuple(range(256))


class ClusterShape(Struct, frozen=True):
    """Say how many null engines there are, and how fast they answer."""

    engines: int
    processes: int  # that hold them
    rate: float  # tokens a second of one request
    interval: int  # tokens of an increment
    longest: int  # tokens of a request; uniform from 1
    kv_policy: KvPolicy = "recompute"


class NullCluster:
    """Hold the processes of null engines, and ask them what they have sent."""

    def __init__(self, urls: list[list[str]], asked: list[Http]) -> None:
        self.urls = urls  # of each process
        self._asked = asked  # one connection for each process

    async def totals(self) -> Totals:
        """Return the sum over all processes."""
        bodies = await asyncio.gather(*(http.command("/server_info") for http in self._asked))
        each = [msgspec.json.decode(body, type=Totals) for body in bodies]
        return Totals(
            events=sum(one.events for one in each),
            tokens=sum(one.tokens for one in each),
            ended=sum(one.ended for one in each),
            open=sum(one.open for one in each),
            cpu_seconds=sum(one.cpu_seconds for one in each),
        )


@contextlib.asynccontextmanager
async def open_cluster(shape: ClusterShape) -> AsyncIterator[NullCluster]:
    """Start the processes, and end them afterwards; they end by themselves if this process dies.

    Raises:
        RunError: a process did not start.
    """
    async with AsyncExitStack() as stack:
        urls = []
        for number in range(shape.processes):
            share = (shape.engines + number) // shape.processes
            process = await _start(shape, share)
            stack.push_async_callback(_end, process)
            urls.append(await _urls_of(process))
        asked = [Http(of_process[0], None, COMMAND_SECONDS) for of_process in urls]
        for http in asked:
            stack.push_async_callback(http.close)
        yield NullCluster(urls, asked)


async def _start(shape: ClusterShape, engines: int) -> Process:
    options = {
        "--engines": engines,
        "--rate": shape.rate,
        "--interval": shape.interval,
        "--longest": shape.longest,
    }
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "arl.bench.null_server", *words]
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 20)


async def _urls_of(process: Process) -> list[str]:
    assert process.stdout is not None
    async with deadline(START_SECONDS, "bench", f"null engines (pid {process.pid}) to listen"):
        line = await process.stdout.readline()
    if not line:
        raise RunError(f"null engines (pid {process.pid}) ended before they listened; their message is on stderr")
    return msgspec.json.decode(line, type=list[str])


async def _end(process: Process) -> None:
    """Close the process's standard input, which ends it, or kill it after END_SECONDS."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


class HeldTrainer(NullTrainer):
    """Implement Trainer: learn nothing, at once; give the engines no weights before `may_publish` is set."""

    def __init__(self) -> None:
        self.may_publish = asyncio.Event()

    async def weights(self, version: int) -> WeightUpdate:
        """See Trainer."""
        await self.may_publish.wait()
        self.may_publish.clear()
        return WeightUpdate(version, "null")


class LongPromptCodec(NullCodec):
    """Implement TextCodec: like NullCodec, with a prompt of the usual length of a problem in mathematics."""

    def encode_problem(self, problem: Problem) -> tuple[int, ...]:
        """See TextCodec."""
        return PROMPT_IDS


@contextlib.asynccontextmanager
async def open_parts(start: Start, cluster: NullCluster, shape: ClusterShape) -> AsyncIterator[Parts]:
    """Connect the real HTTP clients and the real router, and make the parts of a run."""
    async with AsyncExitStack() as stack:
        engines = []
        for url in itertools.chain(*cluster.urls):
            engine = HttpEngine(
                url,
                generate_seconds=COMMAND_SECONDS,
                swap_seconds=COMMAND_SECONDS,
                kv_policy=shape.kv_policy,
            )
            engines.append(await stack.enter_async_context(engine))
        yield recipe_parts(
            start,
            engine=Router(engines),
            trainer=HeldTrainer(),
            codec=LongPromptCodec(),
            rewards=NullRewards(),
        )
