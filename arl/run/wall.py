"""Everything a run needs, running: engine servers, trainer ranks, reward workers, and the clients that speak to them.

    EngineServers ─► connect_engines ─► Router              embedded server or SGLang × replicas, restarted when lost
    open_trainer  ─► TrainerClient                          arl.train.rank × ranks
    open_rewards  ─► RewardPool                             arl.reward.worker × workers

Processes are started first and awaited afterwards, so that both sides load their weights at the same time.
"""

import asyncio
import contextlib
import fcntl
import functools
import math
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from arl.config.recipe import Recipe
from arl.data.model_limits import model_limits
from arl.engine.base import WeightSender
from arl.engine.http.engine_client import SGLangEngine
from arl.engine.router import DEATH_SECONDS, Router
from arl.engine.sglang import server_command
from arl.engine.supervisor import EngineKeeper
from arl.errors import ArlError, EngineError, InputError, ProcessDied, RunError, TrainerError, leaves
from arl.launch.child import RUN_KEY
from arl.launch.host_memory import free_memory
from arl.launch.local import LocalProcess, LocalProcesses
from arl.launch.placement import Share
from arl.reward.pool import RewardPool
from arl.sync.published_versions import kept_versions
from arl.tasks.registry import task_module
from arl.train.channel import Init
from arl.train.trainer_client import TrainerClient
from arl.types import StartingVersions, Transport

MEMORY = Path("/dev/shm")  # a memory-backed file system, where Linux has one
WEIGHTS = "arl-weights"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def new_key() -> str:
    """Secret of one run: every process of it knows it, nobody else does."""
    return secrets.token_hex(24)  # no sign that a command line could take for an option


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
    log, limits = directory / "reward.log", recipe.deadlines
    return RewardPool(reward_name(recipe), recipe.reward.workers, limits.reward, limits.startup, log)


@dataclass(frozen=True)
class EngineServers:
    """One server per share, on a free loopback port, with the oldest of `versions`."""

    recipe: Recipe
    versions: StartingVersions
    shares: list[Share]
    processes: LocalProcesses
    key: str

    async def start(self, i: int) -> LocalProcess:
        """Server `i`, for the first time or again."""
        argv, env = _engine_command(self.recipe, self.versions, self.shares[i], self.recipe.seed + i)
        env |= LOOPBACK | {RUN_KEY: self.key}
        return await self.processes.start(f"engine-{i}", argv, env, is_kept=True)

    async def start_all(self) -> list[LocalProcess]:
        return [await self.start(i) for i in range(len(self.shares))]

    def connect(self, url: str, sender: WeightSender | None = None) -> SGLangEngine:
        limits, (vocab_size, context) = self.recipe.deadlines, model_limits(self.versions.served)
        return SGLangEngine(
            url,
            generate_seconds=limits.generate,
            swap_seconds=limits.swap,
            kv_policy=self.recipe.engine.kv_policy,
            gives_up_memory=self.shares[0].in_turns,
            key=self.key,
            vocab_size=vocab_size,
            context=context,
            sender=sender,
            workers=self.recipe.engine.tensor_parallel,
        )


def _engine_command(
    recipe: Recipe, versions: StartingVersions, share: Share, seed: int
) -> tuple[list[str], dict[str, str]]:
    """argv and environment of one server."""
    config = recipe.engine
    if config.kind == "sglang":
        python, limits = server_command.interpreter(config.python), model_limits(versions.served)
        argv = server_command.command(config, python, versions.served, versions.oldest, share, limits, seed)
        return argv, server_command.environment(python, share)
    argv = [
        *(sys.executable, "-m", "arl.engine.embedded.server", "--model", versions.served, "--port", "0"),
        *("--slots", str(config.slots), "--dtype", config.dtype, "--threads", str(share.threads)),
        *("--stream-interval", str(config.stream_interval), "--version", str(versions.oldest)),
    ]
    return argv, share.env


@contextlib.asynccontextmanager
async def connect_engines(
    servers: EngineServers, started: list[LocalProcess], note: Callable[[str], None], sender: WeightSender | None = None
) -> AsyncIterator[Router]:
    """A Router over what was started, once all of it is ready; a server that dies is replaced, and `note` told.

    `sender` is the trainer, where weights are broadcast.
    """
    router = Router([None] * len(started))
    startup, restarts = servers.recipe.deadlines.startup, servers.recipe.engine.max_restarts
    async with asyncio.TaskGroup() as tasks:
        keepers = []
        for i, server in enumerate(started):
            start = functools.partial(servers.start, i)
            connect = functools.partial(servers.connect, sender=sender)
            keeper = EngineKeeper(router, i, start, connect, startup, restarts, note)
            keepers.append((keeper, tasks.create_task(keeper.keep(server), name=f"keeper of {server.role}")))
        for keeper, _ in keepers:
            await keeper.has_served.wait()  # or its task ends the group, within the deadlines of a start
        yield router
        for _, task in keepers:
            task.cancel()


@contextlib.asynccontextmanager
async def open_trainer(
    recipe: Recipe,
    versions: StartingVersions,
    weights: Path,
    shares: list[Share],
    processes: LocalProcesses,
    key: str,
    lags: np.ndarray | None,
    transport: Transport = "file",
) -> AsyncIterator[TrainerClient]:
    """Trainer ranks, started but not awaited; they publish by `transport`, what is a file to `weights`."""
    train = recipe.train.model_copy(update={"threads": shares[0].threads})
    init = Init(
        model_path=versions.model,
        train=train.model_dump(mode="json"),
        objective=recipe.objective.model_dump(mode="json"),
        temperature=recipe.rollout.temperature,
        version=versions.version,
        resumed=versions.version > 0,
        publish_directory=str(weights),
        kept_versions=kept_versions(recipe, lags),
        collective_seconds=recipe.deadlines.step,
        evidence=str(processes.logs),
        every_version=lags is not None,
        transport=transport,
        bucket_bytes=recipe.sync.bucket_bytes,
        broadcast_seconds=recipe.deadlines.swap,
        checked_as=recipe.engine.dtype if recipe.sync.check else None,
        in_turns=recipe.mode == "collocated",
    )
    trainer = TrainerClient(init, len(shares), key, recipe.deadlines, published=versions.older)
    with held_port() as port:
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(shares)), **LOOPBACK}
        async with trainer:
            for rank, share in enumerate(shares):
                of_rank = {"RANK": str(rank), "LOCAL_RANK": "0"}
                env = {**share.env, **rendezvous, **of_rank, **trainer.environment}
                await processes.start(f"trainer-{rank}", [sys.executable, "-m", "arl.train.rank"], env)
            yield trainer


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A free port, given to nobody by chance meanwhile; rank 0, which takes seconds to get there, may still listen."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextlib.contextmanager
def publication_directory(
    recipe: Recipe, model: Path, run_directory: Path, lags: np.ndarray | None, transport: Transport
) -> Iterator[Path]:
    """Where weights are handed over: in memory if it holds every version that is kept, else on disk.

    What is sent out of the trainer's own memory leaves next to nothing there.

    Removed at the end; what a run that was killed could not remove, the next one does.

    Raises:
        InputError: neither has the room.
    """
    for home in (MEMORY, run_directory):
        for orphan in orphans(home):
            shutil.rmtree(orphan, ignore_errors=True)  # its trainer may still write, dying; the next run ends it
    # The version being written, and one in line.
    kept, bound = kept_versions(recipe, lags), "rollout.staleness" if lags is None else "rollout.lag"
    needed = _float32_bytes(model) * (kept + 2)
    rule = "; make room" if recipe.mode == "collocated" else f" ({bound} + 2); make room, or lower {bound}"
    in_process = transport in ("memory", "broadcast")
    in_memory = os.access(MEMORY, os.W_OK) and (in_process or shutil.disk_usage(MEMORY).free > needed)
    home = MEMORY if in_memory else run_directory
    if (free_memory() if in_process else shutil.disk_usage(home).free) < needed:
        raise InputError(
            f"{'memory' if in_process else home}: publishing weights needs {needed / 1e9:.2f} GB free there, for "
            f"{kept} versions at a time{rule}"
        )
    publications, held = _make_own(home)
    try:
        yield publications
    finally:
        shutil.rmtree(publications, ignore_errors=True)
        os.close(held)


def _make_own(home: Path) -> tuple[Path, int]:
    """A new folder, locked until its file is closed: when this process ends, however it ends."""
    while True:  # another run may be quicker to lock it, and take it for an orphan
        directory = Path(tempfile.mkdtemp(prefix=f"{WEIGHTS}-", dir=home))
        if (held := _lock(directory)) is not None:
            return directory, held


def _lock(directory: Path) -> int | None:
    """A file that locks the folder while it is open; None: it is another run's, another user's, or gone."""
    try:
        held = os.open(directory, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return None
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if directory.exists():
            return held
    os.close(held)
    return None


def _float32_bytes(model: Path) -> int:
    """Of its weights, in whatever type they are stored."""
    size = 0
    for file in model.iterdir():
        if file.suffix == ".safetensors" and "model" in file.stem:
            with safe_open(file, "np") as tensors:
                size += sum(4 * math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return size


def orphans(home: Path) -> Iterator[Path]:
    """Folders of weights in `home` whose run is gone, each locked while the caller looks at it."""
    for directory in home.glob(f"{WEIGHTS}-*"):
        if (held := _lock(directory)) is not None:
            try:
                yield directory
            finally:
                os.close(held)


@contextlib.asynccontextmanager
async def told_deaths(processes: LocalProcesses) -> AsyncIterator[None]:
    """Where a process has died, raise that instead of the broken connections it caused; else show engines' logs."""
    try:
        yield
    except Exception as error:
        causes = list(leaves(error))
        if any(isinstance(cause, EngineError | TrainerError) for cause in causes):
            known = next((cause for cause in causes if isinstance(cause, ProcessDied)), None)
            death = known or await processes.first_death(DEATH_SECONDS)
            told = [cause for cause in causes if isinstance(cause, EngineError)]
            if death is None and told:
                raise EngineError(f"{told[0]}.{processes.log_ends('engine')}") from error
            raise death or error from error
        raise


@contextlib.asynccontextmanager
async def reported_failures() -> AsyncIterator[None]:
    """Raise the one exception to show: of a group, the first that says what happened; a full disk as RunError."""
    try:
        yield
    except Exception as error:
        cause = min(leaves(error), key=lambda cause: not isinstance(cause, ArlError))
        if isinstance(cause, OSError | SafetensorError):
            raise RunError(f"{cause}: is the disk full, or not writable?") from error
        raise cause from error
