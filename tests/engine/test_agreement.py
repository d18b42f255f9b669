"""Compare the logprobs that engines record with those that the trainer computes, before and after a swap."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from arl.config.recipe import Train
from arl.models.tiny import make_tiny_model
from arl.tasks.running_checksum import CHARACTERS
from arl.train.micro_batch import pack_groups
from arl.train.packing import LossSequence
from arl.train.placed_batch import place_batch
from arl.train.sharded_model import ShardedModel
from arl.train.sharding import init_ranks
from arl.types import Completion, Transport
from tests.engine.conftest import SHAPE, Opened, Publish, ask, complete, within

PROMPTS = [tuple((5 * i + 3 * j) % 13 for j in range(10 + i)) for i in range(32)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models as a run begins with them."""
    directories = [tmp_path_factory.mktemp(f"model{seed}") for seed in (2, 3)]
    for seed, directory in enumerate(directories, 2):
        make_tiny_model(SHAPE, CHARACTERS, seed, directory)
    return directories


@pytest.fixture(scope="module")
def trainers(weights: list[Path]) -> list[ShardedModel]:
    device = init_ranks(deadline_seconds=60.0)
    return [ShardedModel(directory, Train(dtype="float32", learning_rate=1.5e-4), 1.0, device) for directory in weights]


@pytest.mark.parametrize(
    ("kind", "transport"),
    [("server", "broadcast"), pytest.param("sglang", "broadcast", marks=pytest.mark.sglang)],
    indirect=["kind"],
)
def test_engine_and_trainer_agree_before_and_after_a_swap(
    opened: Opened, publish: Publish, transport: Transport, weights: list[Path], trainers: list[ShardedModel]
) -> None:
    """32 requests with a swap in their midst; each token is compared under the version it carries."""

    async def scenario() -> tuple[list[Completion], int]:
        async with opened() as engine:
            first = engine.loaded_version + 1
            await engine.update_weights(publish(transport, first, str(weights[0])))
            requests = [ask(f"r{i}", prompt, 150, seed=i) for i, prompt in enumerate(PROMPTS)]
            calls = [asyncio.create_task(complete(engine, request)) for request in requests]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            await engine.update_weights(publish(transport, first + 1, str(weights[1])))
            return await asyncio.gather(*calls), first

    answers, first = within(scenario)
    for version, trainer in enumerate(trainers, first):
        pairs = zip(PROMPTS, answers, strict=True)
        differences = np.abs(np.concatenate([beside_the_trainer(trainer, *pair, version) for pair in pairs]))
        print(f"{len(differences)} tokens: mean {differences.mean():.2g}, max {differences.max():.2g}")
        assert len(differences) > 500
        assert differences.mean() <= 1e-6
        assert differences.max() <= 2e-4


def beside_the_trainer(trainer: ShardedModel, prompt: tuple[int, ...], said: Completion, version: int) -> np.ndarray:
    """Return the trainer's own logprobs minus the recorded ones, on the tokens of `version`."""
    sequence = LossSequence(
        token_ids=np.array(prompt + said.token_ids, np.int32),
        loss_at=np.arange(len(prompt), len(prompt) + len(said.token_ids)),
        columns={
            "behavior_logprobs": np.array(said.logprobs, np.float32),
            "policy_versions": np.array(said.policy_versions, np.int32),
            "advantages": np.ones(len(said.token_ids), np.float32),
        },
    )
    ((pack,),) = pack_groups([[sequence]], capacity=1024, ranks=1)
    with torch.no_grad():
        scores: np.ndarray = trainer.score(place_batch(pack, trainer.device))[0].numpy()
    differences = scores[pack.loss_scores] - pack.columns["behavior_logprobs"]
    return np.asarray(differences[pack.columns["policy_versions"] == version])
