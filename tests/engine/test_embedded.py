"""Check the embedded engine and its cache: model families, precision, pause modes, virtual time, broken weights."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from arl.engine.embedded.batching import EmbeddedEngine
from arl.errors import EngineError
from arl.models.load import load_model
from arl.types import Completion, ScoreRequest, TokenScores, WeightUpdate
from tests.engine.conftest import Weights, ask, complete, within

SHAPE = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: pytest -m gpu")]
PROMPTS = [tuple((5 * i + j) % 30 for j in range(1 + 9 * i)) for i in range(6)]


@pytest.mark.parametrize(
    ("family", "extra", "dtype", "tolerance", "device"),
    [
        ("llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}, "float32", 1e-4, "cpu"),
        ("qwen2", {"num_key_value_heads": 1}, "float32", 1e-4, "cpu"),
        ("mistral", {"num_key_value_heads": 4, "sliding_window": None}, "float32", 1e-4, "cpu"),
        ("gemma", {"num_key_value_heads": 1, "head_dim": 32}, "float32", 1e-4, "cpu"),
        ("qwen3", {"num_key_value_heads": 2, "head_dim": 32}, "bfloat16", 0.15, "cpu"),
        ("llama", {"num_key_value_heads": 2}, "float16", 0.02, "cpu"),
        pytest.param("llama", {"num_key_value_heads": 2}, "float32", 1e-3, "cuda", marks=ON_GPU),
        pytest.param("llama", {"num_key_value_heads": 2}, "bfloat16", 0.15, "cuda", marks=ON_GPU),
    ],
)
def test_every_family_agrees_with_stock_transformers(
    tmp_path: Path, family: str, extra: dict[str, object], dtype: str, tolerance: float, device: str
) -> None:
    """Grouped heads, ragged prompts, shared prompts, more requests than slots, cache growth, a retraction."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SHAPE, **extra)).save_pretrained(tmp_path)
    weights = Weights(tmp_path)

    async def scenario() -> list[Completion]:
        async with EmbeddedEngine(load_model(tmp_path, dtype, device), slots=5) as engine:
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


def test_a_scoring_that_fails_takes_no_other_with_it(old: Weights) -> None:
    async def scenario() -> list[TokenScores | BaseException]:
        async with EmbeddedEngine(load_model(old.path, "float32")) as engine:
            asked = [engine.score(ScoreRequest(name, (1, 2, 3), start=1, top_k=k)) for name, k in (("a", 99), ("b", 2))]
            return await asyncio.gather(*asked, return_exceptions=True)

    failed, scores = within(scenario)
    assert isinstance(failed, RuntimeError), failed  # of 99 tokens, where there are fewer
    assert isinstance(scores, TokenScores)


def test_a_request_whose_logits_are_not_finite_fails_alone(old: Weights, tmp_path: Path) -> None:
    """The engine goes on: better weights serve the next request."""
    state = load_file(Path(old.path) / "model.safetensors")
    save_file({name: tensor * torch.nan for name, tensor in state.items()}, tmp_path / "model.safetensors")

    async def scenario() -> None:
        async with EmbeddedEngine(load_model(old.path, "float32")) as engine:
            await engine.update_weights(WeightUpdate(1, str(tmp_path)))
            for name in ("r", "after"):
                with pytest.raises(EngineError, match=f"request {name}: the model's logits are not finite"):
                    await complete(engine, ask(name))
            await engine.update_weights(WeightUpdate(2, old.path))
            assert (await complete(engine, ask("well", tokens=3))).finish_reason == "length"
            assert engine.num_open == 0

    within(scenario)
