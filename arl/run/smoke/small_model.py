"""Make the small random model of a smoke test, of the same architecture family as a recipe's model.

config of the model ─► fewer layers, on a CPU also less width ─► random weights ─► logits of a usual size ─► directory

The sizes of random weights decide what a comparison of logprobs can show. With transformers' own every token is about
as likely as any other, and attention sees every key alike, so another temperature or another position would hardly
change a logprob. Here the products of a block have about unit variance, and logits have the standard deviation of a
trained model's.
"""

from pathlib import Path
from typing import Any

from arl.config.recipe import Recipe, TinyModel
from arl.data.model_limits import model_config

LAYERS = 2
CONTEXT = 512  # tokens
LOGIT_STD = 4.0  # nats, of a trained model
CPU_WIDTH = 128
CPU_HEADS = 4
CPU_VOCABULARY = 512
SAMPLE = (4, 64)  # sequences and tokens, over which the logits' standard deviation is measured
PLAIN_BYTES = 268_000_000  # read and written where no model says how large a version is


def small_config(recipe: Recipe | None, on_gpus: bool) -> Any:
    """Return the transformers config of the model to make: Llama's without a recipe.

    Raises:
        DataError: the recipe's model has no config that can be read.
    """
    if recipe is None or recipe.model.path is None:
        tiny = TinyModel() if recipe is None or recipe.model.tiny is None else recipe.model.tiny
        return _tiny_config(tiny)
    config = model_config(recipe.model.path)
    layers = min(LAYERS, config.num_hidden_layers)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    config.max_position_embeddings = CONTEXT
    if not on_gpus:
        _narrow(config)
    return config


def version_bytes(recipe: Recipe | None, item_bytes: int) -> int:
    """Return the bytes of a published version of the recipe's own model; without a model.path, PLAIN_BYTES.

    Args:
        item_bytes: of one weight.

    Raises:
        DataError: the recipe's model has no config that can be read.
    """
    if recipe is None or recipe.model.path is None:
        return PLAIN_BYTES
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config(recipe.model.path))
    weights: int = sum(parameter.numel() for parameter in model.parameters())
    return item_bytes * weights


def make_small_model(config: Any, directory: Path, seed: int = 0) -> None:
    """Write random float32 weights and the config to `directory`, as safetensors."""
    import torch
    from transformers import AutoModelForCausalLM

    config.initializer_range = config.hidden_size**-0.5
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _set_logit_std(model)
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(directory)


def _tiny_config(shape: TinyModel) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=CPU_VOCABULARY,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=max(CONTEXT, shape.context),
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )


def _narrow(config: Any) -> None:
    """Give the config widths that a CPU computes in milliseconds, with the same structure."""
    is_grouped = config.num_key_value_heads < config.num_attention_heads
    config.hidden_size = CPU_WIDTH
    config.intermediate_size = 3 * CPU_WIDTH
    config.num_attention_heads = CPU_HEADS
    config.num_key_value_heads = CPU_HEADS // 2 if is_grouped else CPU_HEADS
    config.head_dim = CPU_WIDTH // CPU_HEADS
    config.vocab_size = min(config.vocab_size, CPU_VOCABULARY)
    config.bos_token_id = 0
    config.eos_token_id = 1
    config.pad_token_id = None


def _set_logit_std(model: Any) -> None:
    """Scale the last norm, on which logits depend linearly, so that logits have the standard deviation LOGIT_STD."""
    import torch

    token_ids = torch.randint(0, model.config.vocab_size, SAMPLE)
    norm = model.model.norm.weight
    stored_minus_one = 1.0 if model.config.model_type == "gemma" else 0.0  # it computes with weight + 1
    with torch.no_grad():
        std = float(model(token_ids).logits.std())
        norm.add_(stored_minus_one).mul_(LOGIT_STD / std).sub_(stored_minus_one)
