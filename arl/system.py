"""Everything a run needs, running: engine servers, trainer ranks, reward workers, and the clients that speak to them.

    start_engines ─► connect_engines ─► Router              arl.engine.server × replicas
    open_trainer  ─► TrainerClient                          arl.train.worker × ranks
    open_rewards  ─► RewardPool                             arl.reward.worker × workers

Processes are started first and awaited afterwards, so that both sides load their weights at the same time.
"""

import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from arl.data.tasks import task_module
from arl.engine.client import SGLangEngine
from arl.engine.router import Router
from arl.errors import InputError
from arl.launch.local import LocalProcess, LocalProcesses
from arl.launch.placement import Share
from arl.recipe import Recipe
from arl.reward.pool import RewardPool
from arl.train.channel import Init
from arl.train.client import TrainerClient

MEMORY = Path("/dev/shm")  # a memory-backed file system, where Linux has one
RUN_KEY = "ARL_RUN_KEY"
WEIGHTS = "arl-weights"


def new_key() -> str:
    """Secret of one run: every process of it knows it, nobody else does."""
    return secrets.token_urlsafe(24)


def reward_name(recipe: Recipe) -> str:
    """`module:function` of the recipe's reward: its own, or the task's.

    Raises:
        InputError: neither names one.
    """
    if recipe.reward.function is not None:
        return recipe.reward.function
    if recipe.data.task is None:
        raise InputError("reward.function: required with data.path; name a module:function")
    return f"{task_module(recipe.data.task)}:reward"


def open_rewards(recipe: Recipe, directory: Path) -> RewardPool:
    log = directory / "logs" / "reward.log"
    return RewardPool(reward_name(recipe), recipe.reward.workers, recipe.deadlines.reward, log)


async def start_engines(
    recipe: Recipe, model: Path, shares: list[Share], processes: LocalProcesses, key: str
) -> list[LocalProcess]:
    """One server per share, on a free loopback port, with the weights of `model` as version 0."""
    config = recipe.engine
    return [
        await processes.start(
            f"engine-{i}",
            [
                *(sys.executable, "-m", "arl.engine.server", "--model", str(model), "--port", "0"),
                *("--slots", str(config.slots), "--dtype", config.dtype, "--threads", str(share.threads)),
                *("--stream-interval", str(config.stream_interval)),
            ],
            {**share.env, RUN_KEY: key},
        )
        for i, share in enumerate(shares)
    ]


@contextlib.asynccontextmanager
async def connect_engines(servers: list[LocalProcess], recipe: Recipe, key: str) -> AsyncIterator[Router]:
    """A Router over the servers, once every one of them is ready."""
    limits, policy = recipe.deadlines, recipe.engine.kv_policy
    async with contextlib.AsyncExitStack() as stack:
        engines = []
        for server in servers:
            url = await server.ready(limits.startup)
            client = SGLangEngine(
                url, generate_seconds=limits.generate, swap_seconds=limits.swap, kv_policy=policy, key=key
            )
            engines.append(await stack.enter_async_context(client))
        yield Router(engines)


@contextlib.asynccontextmanager
async def open_trainer(
    recipe: Recipe, model: Path, weights: Path, shares: list[Share], processes: LocalProcesses, key: str
) -> AsyncIterator[TrainerClient]:
    """Trainer ranks with the weights of `model` as version 0, started but not awaited; they publish to `weights`."""
    train = recipe.train.model_copy(update={"threads": shares[0].threads})
    init = Init(
        model_path=str(model),
        train=train.model_dump(mode="json"),
        objective=recipe.objective.model_dump(mode="json"),
        temperature=recipe.rollout.temperature,
        version=0,
        publish_directory=str(weights),
        collective_seconds=recipe.deadlines.step,
    )
    async with TrainerClient(init, len(shares), key, recipe.deadlines) as client:
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(len(shares))}
        for rank, share in enumerate(shares):
            env = {**share.env, **rendezvous, "RANK": str(rank), "LOCAL_RANK": "0", **client.environment}
            await processes.start(f"trainer-{rank}", [sys.executable, "-m", "arl.train.worker"], env)
        yield client


@contextlib.contextmanager
def publication_directory(model: Path, run_directory: Path) -> Iterator[Path]:
    """Where weights are handed over: in memory if it holds five versions, else on disk. Removed at the end.

    What a run that was killed could not remove, the next one does.

    Raises:
        InputError: neither has the room.
    """
    for orphan in MEMORY.glob(f"{WEIGHTS}-*"):
        if not Path("/proc", orphan.name.split("-")[2]).exists():
            shutil.rmtree(orphan, ignore_errors=True)  # another run may be at it too
    needed = 5 * sum(file.stat().st_size for file in model.glob("*.safetensors"))
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > needed
    home = MEMORY if in_memory else run_directory
    if shutil.disk_usage(home).free < needed:
        raise InputError(f"{home}: publishing weights needs {needed / 1e9:.2f} GB free there; make room")
    with tempfile.TemporaryDirectory(prefix=f"{WEIGHTS}-{os.getpid()}-", dir=home) as directory:
        yield Path(directory)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
