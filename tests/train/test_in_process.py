"""The trainer of the virtual world computes what the trainer processes compute."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arl import clock
from arl.config.recipe import Recipe
from arl.metrics.summary import weights_sha256
from arl.train.algorithms.advantage import GRPO, Advantage
from arl.train.algorithms.gae import GAE
from arl.train.in_process import InProcessTrainer
from arl.types import StartingVersions, StepResult
from tests.train.synthetic import batch
from tests.train.workers import forked, init

STEPS = range(3)


CRITICS: dict[str, tuple[Advantage, dict[str, Any]]] = {
    "no critic": (GRPO(), {}),
    "critic": (GAE(lam=0.9), {"critic": {"learning_rate": 1e-3}}),
}


async def in_process(model: Path, directory: Path, advantage: Advantage, train: dict[str, Any]) -> list[StepResult]:
    recipe = Recipe.model_validate(
        {
            "world": "virtual",
            "model": {"path": str(model)},
            "data": {"task": "running_checksum"},
            "train": {"minibatches": 2, "dtype": "float32", "learning_rate": 1.5e-4, **train},
            "advantage": advantage,
            "engine": {"dtype": "float32"},
        }
    )
    trainer = InProcessTrainer(recipe, StartingVersions(str(model)), directory)
    results = [await trainer.step(batch(v, groups=8, size=4, seed=v)) for v in STEPS]
    await trainer.save(directory / "saved")
    return results


async def in_a_rank(model: Path, directory: Path, advantage: Advantage, train: dict[str, Any]) -> list[StepResult]:
    sent = advantage.model_dump(mode="json")
    first = msgspec.structs.replace(init(model, directory, **train), version=0, advantage=sent)
    async with forked(first, 1, advantage) as (trainer, (rank,)):
        results = [await trainer.step(batch(v, groups=8, size=4, seed=v)) for v in STEPS]
        await trainer.save(directory / "saved")
        await trainer.saved()
        await trainer.stop()
        assert rank.wait(300) == 0
    return results


@pytest.mark.parametrize("critic", CRITICS)
def test_the_same_batches_give_the_same_weights_as_a_trainer_process(tiny: Path, tmp_path: Path, critic: str) -> None:
    sections = CRITICS[critic]
    (tmp_path / "virtual").mkdir()
    ours = clock.run(lambda: in_process(tiny, tmp_path / "virtual", *sections), virtual=True)
    theirs = asyncio.run(in_a_rank(tiny, tmp_path / "real", *sections))
    for saved in ("saved", "saved/critic") if critic == "critic" else ("saved",):
        assert weights_sha256(tmp_path / "virtual" / saved) == weights_sha256(tmp_path / "real" / saved)
    for a, b in zip(ours, theirs, strict=True):
        for name in ("loss", "grad_norm", "entropy", "tokens/trained"):
            assert a.metrics[name] == b.metrics[name]
