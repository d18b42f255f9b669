"""Run the embedded engine on an NVIDIA GPU: ragged prompts, a growing cache, a swap in their midst."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from arl.engine.embedded.batching import EmbeddedEngine
from arl.models.load import load_model
from arl.types import Completion, WeightUpdate
from tests.engine.conftest import Weights, ask, complete, within
from tests.engine.test_embedded import PROMPTS, SHAPE

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: pytest -m gpu")]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.15)])
def test_what_is_sampled_has_the_logprobs_of_stock_transformers(tmp_path: Path, dtype: str, tolerance: float) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **SHAPE, num_key_value_heads=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    weights = Weights(tmp_path)

    async def scenario() -> list[Completion]:
        async with EmbeddedEngine(load_model(tmp_path, dtype, "cuda"), slots=5) as engine:
            requests = [ask(f"r{i}", PROMPTS[i // 2], 30 + 10 * i, seed=i) for i in range(12)]
            answers = asyncio.gather(*(complete(engine, request) for request in requests))
            for _ in range(40):
                await asyncio.sleep(0)
            await engine.update_weights(WeightUpdate(1, str(tmp_path)))
            said = await answers
            engine.release_cache()
            return said

    for i, answer in enumerate(within(scenario)):
        reference = weights.logprobs(PROMPTS[i // 2], answer.token_ids)
        assert np.abs(np.array(answer.logprobs) - reference).max() < tolerance
