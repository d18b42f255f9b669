"""The trainer of the virtual world computes what the trainer processes compute."""

import asyncio
from pathlib import Path

import msgspec

from arl import clock
from arl.config.recipe import Recipe
from arl.metrics.summary import weights_sha256
from arl.train.in_process import InProcessTrainer
from arl.types import StartingVersions, StepResult
from tests.train.synthetic import batch
from tests.train.workers import forked, init

STEPS = range(3)


async def in_process(model: Path, directory: Path) -> list[StepResult]:
    recipe = Recipe.model_validate(
        {
            "world": "virtual",
            "model": {"path": str(model)},
            "data": {"task": "running_checksum"},
            "train": {"minibatches": 2, "dtype": "float32", "learning_rate": 1.5e-4},
            "engine": {"dtype": "float32"},
        }
    )
    trainer = InProcessTrainer(recipe, StartingVersions(str(model)), directory)
    results = [await trainer.step(batch(v, groups=8, size=4, seed=v)) for v in STEPS]
    await trainer.save(directory / "saved")
    return results


async def in_a_rank(model: Path, directory: Path) -> list[StepResult]:
    first = msgspec.structs.replace(init(model, directory), version=0)
    async with forked(first, 1) as (trainer, (rank,)):
        results = [await trainer.step(batch(v, groups=8, size=4, seed=v)) for v in STEPS]
        await trainer.save(directory / "saved")
        await trainer.saved()
        await trainer.stop()
        assert rank.wait(300) == 0
    return results


def test_the_same_batches_give_the_same_weights_as_a_trainer_process(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "virtual").mkdir()
    ours = clock.run(lambda: in_process(tiny, tmp_path / "virtual"), virtual=True)
    theirs = asyncio.run(in_a_rank(tiny, tmp_path / "real"))
    assert weights_sha256(tmp_path / "virtual" / "saved") == weights_sha256(tmp_path / "real" / "saved")
    for a, b in zip(ours, theirs, strict=True):
        for name in ("loss", "grad_norm", "entropy", "tokens/trained"):
            assert a.metrics[name] == b.metrics[name]
