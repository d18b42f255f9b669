"""Check before the start that what a recipe and a model let end a turn can occur. Torch-free."""

from arl.config.recipe import Recipe
from arl.data.text_codec import TextCodec
from arl.errors import InputError


def check_stops(recipe: Recipe, codec: TextCodec, vocab_size: int) -> None:
    """Compare stop tokens with the model's vocabulary, and stop strings with what its tokenizer can write.

    Raises:
        InputError: a stop token that the model does not have, or a string that no text of the tokenizer contains.
    """
    ids = f"the model's ids run from 0 to {vocab_size - 1}"
    for token in recipe.rollout.stop_token_ids:
        if token >= vocab_size:
            raise InputError(f"rollout.stop_token_ids {token}: {ids}; give ids of its tokenizer")
    for token in codec.stop_token_ids:
        if token >= vocab_size:
            raise InputError(
                f"model.path {recipe.model.path}: its generation_config.json has the end token {token}, and {ids}: "
                "correct eos_token_id there"
            )
    for string in recipe.rollout.stop:
        written = codec.encode(string)
        if string.strip() not in codec.decode(written):
            raise InputError(
                f"rollout.stop {string!r}: its tokens {list(written)} decode to {codec.decode(written)!r}, so no text "
                "contains it, as for special tokens; give their ids in rollout.stop_token_ids instead"
            )
