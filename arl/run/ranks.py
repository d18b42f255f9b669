"""Start the trainer ranks of a run and connect a client to them."""

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np

from arl.config.recipe import Recipe
from arl.launch.local import LocalProcesses
from arl.launch.loopback import LOOPBACK, held_port
from arl.launch.placement import Share
from arl.sync.published_versions import kept_versions
from arl.train.channel import Init
from arl.train.trainer_client import TrainerClient
from arl.types import StartingVersions, Transport


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
    trainer = TrainerClient(init, recipe.advantage, len(shares), key, recipe.deadlines, published=versions.older)
    with held_port() as port:
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(shares)), **LOOPBACK}
        async with trainer:
            for rank, share in enumerate(shares):
                of_rank = {"RANK": str(rank), "LOCAL_RANK": "0"}
                env = {**share.env, **rendezvous, **of_rank, **trainer.environment}
                await processes.start(f"trainer-{rank}", [sys.executable, "-m", "arl.train.rank"], env)
            yield trainer
