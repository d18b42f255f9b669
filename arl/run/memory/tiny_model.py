"""Refuse a run of a model.tiny that cannot fit into memory, by arithmetic on its recipe. Torch-free.

A tiny model is nowhere before the run makes it, so it is not planned as one of model.path is. What is counted here is
the least that a run takes: it is refused only where it would certainly be killed.
"""

from arl.config.recipe import Recipe, TinyModel
from arl.data.model_limits import Limits
from arl.data.model_shape import ModelShape
from arl.errors import InputError
from arl.run.memory.engine_bytes import engine_bytes, grown_capacity

TRAINED_BYTES = 16  # a parameter: float32 weights, gradient and AdamW's two moments


def refuse_overfull_tiny(recipe: Recipe, limits: Limits, longest: int, available: int | None) -> None:
    """Check that a machine holds what training a model.tiny takes, beside the weights and caches of all engines.

    Args:
        recipe: without `auto`.
        limits: of the model.
        longest: trajectory, tokens.
        available: bytes; None: not known, so nothing is refused.

    Raises:
        InputError: it does not; names what takes most.
    """
    assert recipe.model.tiny is not None
    parameters = count_parameters(recipe.model.tiny, limits.vocab_size)
    replicas = recipe.engine.replicas
    shape = _shape(recipe.model.tiny, limits.vocab_size)
    engine = engine_bytes(recipe.engine, shape, parameters, free=None)
    trainer = TRAINED_BYTES * parameters
    weights = replicas * engine.weights
    slot_tokens = grown_capacity(longest, limits.context)
    caches = replicas * recipe.engine.slots * slot_tokens * engine.per_token
    needed = trainer + weights + caches
    if available is None or needed <= available:
        return
    raise InputError(
        f"memory: the run takes {needed / 1e9:.1f} GB or more, and {available / 1e9:.1f} GB are free: "
        f"{trainer / 1e9:.1f} to train the {parameters:,} parameters of model.tiny, {weights / 1e9:.1f} for "
        f"its copies in {replicas} engines, and {caches / 1e9:.1f} for engine.slots {recipe.engine.slots} of "
        f"{slot_tokens} tokens in each; lower the sizes of model.tiny, engine.slots, or rollout.max_new_tokens"
    )


def count_parameters(tiny: TinyModel, vocab_size: int) -> int:
    """Count the parameters of the model that arl.models.tiny makes."""
    width = tiny.hidden_size
    block = 4 * width**2 + 3 * width * tiny.intermediate_size + 2 * width
    return tiny.layers * block + 2 * vocab_size * width + width


def _shape(tiny: TinyModel, vocab_size: int) -> ModelShape:
    return ModelShape(
        layers=tiny.layers,
        width=tiny.hidden_size,
        heads=tiny.heads,
        kv_heads=tiny.heads,
        head_dim=tiny.hidden_size // tiny.heads,
        mlp_width=tiny.intermediate_size,
        vocab_size=vocab_size,
        has_normed_heads=False,
        has_wide_norms=False,
    )
