"""A swap whose tokens have other labels than the version that was loaded is wrong, and says so."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

from msgspec.structs import replace

from arl import clock
from arl.config.capabilities import Capabilities
from arl.config.recipe import Recipe
from arl.engine.backend import Installation
from arl.engine.router import Router
from arl.run.smoke.repeated_batch import make_batch, random_answers
from arl.run.smoke.smoke_sides import EngineSide, TrainerSide
from arl.run.smoke.smoke_trials import Trial
from arl.run.smoke.smoke_types import Precision
from arl.run.smoke.weight_swaps import Swapped, swap
from arl.train.trainer_client import TrainerClient
from arl.types import GenerateRequest, Increment
from tests.fakes import NullEngine, NullTrainer

RECIPE = Recipe.model_validate({"model": {"tiny": {}}, "data": {"task": "running_checksum"}, "engine": {"slots": 8}})


class ForgetfulEngine(NullEngine):
    """Labels every token with version 0, whatever it has loaded."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        async for increment in super().generate(request):
            yield replace(increment, policy_versions=(0,))


def test_an_engine_that_labels_tokens_with_an_older_version_is_wrong() -> None:
    async def scenario() -> Swapped:
        found = Installation("null", "1", "here", Capabilities())
        trial = Trial("null", found, RECIPE, transports=("file",), refused={})
        engine = ForgetfulEngine(length_of=lambda seed: 30)
        starting = asyncio.create_task(asyncio.sleep(0.0, 0.0))
        return await swap(
            EngineSide(trial, cast(Router, engine), start_seconds=0.0),
            TrainerSide(cast(TrainerClient, NullTrainer()), starting),
            make_batch(random_answers(vocab_size=50), version=0),
            transport="file",
            vocab_size=50,
            precision=Precision("float32", "float32"),
            on_gpus=False,
        )

    swapped = clock.run(scenario, virtual=True)
    assert swapped.report.version == 1
    assert swapped.row.verdict == "wrong"
    assert swapped.row.reason == "no token of this version was sampled"
