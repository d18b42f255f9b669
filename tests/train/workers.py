"""Start real trainer ranks: as a run does, by a launcher, or as forks, which need not import torch anew."""

import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from arl.config.recipe import Deadlines, Train
from arl.launch.base import Process, Resources
from arl.launch.local import LocalLauncher
from arl.launch.network import LOOPBACK, LOOPBACK_INTERFACE, held_port
from arl.launch.run_secrets import RunSecrets
from arl.run.processes import start_ranks
from arl.train.algorithms.advantage import GRPO, Advantage
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.channel import Init
from arl.train.trainer_client import TrainerClient
from tests.forks import Fork

DEADLINES = Deadlines(startup=300, step=300, swap=300)
KEY = "secret"


def init(model: Path, published: Path, **train: object) -> Init:
    """Make the Init of a trainer at version 4, and its directory."""
    published.mkdir(parents=True, exist_ok=True)
    section = Train(dtype="float32", learning_rate=1.5e-4, minibatches=2, threads=1, **train)  # type: ignore[arg-type]
    return Init(
        model_path=str(model),
        train=section.model_dump(mode="json"),
        objective=DecoupledPPO().model_dump(mode="json"),
        temperature=1.0,
        version=4,
        resumed=False,
        publish_directory=str(published),
        kept_versions=3,
        collective_seconds=300.0,
        shutdown_seconds=60.0,
    )


@contextlib.asynccontextmanager
async def launched(
    first: Init, ranks: int, deadlines: Deadlines = DEADLINES
) -> AsyncIterator[tuple[TrainerClient, list[Process]]]:
    """Start `ranks` processes with a launcher, which ends them, and connect a client; they are ready.

    Each imports torch, which takes seconds. The client is told when one of them dies.
    """
    async with (
        LocalLauncher(Path(first.publish_directory).parent / "logs", patience=10.0) as launcher,
        TrainerClient(first, GRPO(), ranks, RunSecrets(KEY), deadlines, host=LOOPBACK) as trainer,
    ):
        processes = await start_ranks(trainer, [Resources(threads=1)] * ranks, launcher, {})
        await trainer.ready()
        yield trainer, processes


@contextlib.asynccontextmanager
async def forked(
    first: Init, ranks: int, advantage: Advantage | None = None
) -> AsyncIterator[tuple[TrainerClient, list[Fork]]]:
    """Start `ranks` forks and connect a client; they are ready. The client does not see their deaths."""
    async with TrainerClient(first, advantage or GRPO(), ranks, RunSecrets(KEY), DEADLINES, host=LOOPBACK) as trainer:
        with world("arl.train.rank", [], ranks, {**trainer.environment, **trainer.secrets}) as processes:
            await trainer.ready()
            yield trainer, processes


def run_world(cases: list[tuple[str, dict[str, Any]]], ranks: int, directory: Path) -> None:
    """Do cases of tests.train.world in so many ranks; an assertion that fails in a rank is one here."""
    file = directory / "cases.json"
    file.write_text(json.dumps(cases))
    with world("tests.train.world", [str(file)], ranks, {"OMP_NUM_THREADS": "1"}) as processes:
        assert [process.wait(600) for process in processes] == [0] * ranks


@contextlib.contextmanager
def world(module: str, arguments: list[str], ranks: int, environment: dict[str, str]) -> Iterator[list[Fork]]:
    """Start `ranks` processes that meet, on CPUs; they are killed at the end if they still run."""
    with held_port(LOOPBACK) as port:
        shared = {
            **os.environ,
            **environment,
            **LOOPBACK_INTERFACE,
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(port),
            "OMP_WAIT_POLICY": "PASSIVE",
            "CUDA_VISIBLE_DEVICES": "",
        }
        processes = [Fork(module, arguments, {**shared, "RANK": str(rank)}) for rank in range(ranks)]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.wait(300)
