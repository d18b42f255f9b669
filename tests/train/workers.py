"""Starts real trainer ranks, as the launcher does, and tells them what they need to know."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from arl.config.recipe import Objective, Train
from arl.launch.child import PARENT
from arl.launch.loopback import LOOPBACK, held_port
from arl.train.channel import Init
from tests.forks import Fork


def init(model: Path, published: Path, every_version: bool = False, **train: object) -> Init:
    """Of a trainer at version 4, whose directory exists."""
    published.mkdir(parents=True, exist_ok=True)
    section = Train(minibatches=2, threads=1, **train)  # type: ignore[arg-type]
    return Init(
        model_path=str(model),
        train=section.model_dump(mode="json"),
        objective=Objective().model_dump(mode="json"),
        temperature=1.0,
        version=4,
        resumed=False,
        publish_directory=str(published),
        kept_versions=3,
        collective_seconds=300.0,
        evidence=str(published.parent / "logs"),
        every_version=every_version,
    )


@contextlib.contextmanager
def started(environment: dict[str, str], ranks: int, parent: int | None = None) -> Iterator[list[Fork]]:
    """`ranks` workers; killed at the end if they still live."""
    environment = {**environment, PARENT: str(parent or os.getpid())}
    with world("arl.train.rank", [], ranks, environment) as processes:
        yield processes


@contextlib.contextmanager
def world(module: str, arguments: list[str], ranks: int, environment: dict[str, str]) -> Iterator[list[Fork]]:
    """`ranks` processes that meet, on CPUs; killed at the end if they still live."""
    with held_port() as port:
        shared = {
            **os.environ,
            **environment,
            **LOOPBACK,
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
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
