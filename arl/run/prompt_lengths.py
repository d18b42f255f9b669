"""Check, before a run starts, that model and trainer can hold its longest trajectory, and that its stops can occur."""

from arl.config.recipe import Recipe, Train
from arl.data.model_limits import Limits
from arl.data.text_codec import TextCodec
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import InputError
from arl.types import Problem

SHORTEST_PROMPTS = 4  # by characters, one of which may have no token at all
LONGEST_PROMPTS = 16  # by characters; the longest by tokens is among them in practice
SHOWN_CHARACTERS = 120  # of a prompt, in messages


def check_lengths(recipe: Recipe, problems: list[Problem], codec: HuggingFaceCodec, limits: Limits) -> int:
    """Check that model and trainer can hold the longest trajectory that is known before the start; return its tokens.

    The prompts and rollout.max_new_tokens, which bounds what the policy samples in all turns together, are known before
    the start. Text that an env adds is not; a session leaves out what does not fit, and the episode ends as truncated.

    Raises:
        InputError: the longest prompts with full responses are too long, or one has tokens that the model lacks.
    """
    vocab_size, context = limits
    capacity = recipe.train.capacity
    encoded = {codec.encode_problem(problem): problem for problem in _extremes(problems)}
    if () in encoded:
        raise InputError(
            f"problem {encoded[()].id}, {_beginning(encoded[()])!r}, has no token under the tokenizer of the model: "
            "leave it out, or give a tokenizer that knows its characters"
        )
    longest = max(encoded, key=len)
    prompt = len(longest)
    largest = max(max(ids) for ids in [*encoded, codec.stop_token_ids[:1]])
    if largest >= vocab_size:
        raise InputError(
            f"model.path {recipe.model.path}: its tokenizer makes id {largest}, and the model's ids run from 0 to "
            f"{vocab_size - 1}: give the tokenizer that belongs to the model"
        )
    check_stops(recipe, codec, vocab_size)
    sampled = recipe.rollout.max_new_tokens
    what = f"a prompt of {prompt} tokens and rollout.max_new_tokens {sampled}, {prompt + sampled} in all"
    if prompt + sampled > context:
        raise InputError(
            f"{what}, exceed the model's context of {context}: {_remedy_for_context(prompt, sampled, context)}. The "
            f"longest is problem {encoded[longest].id}, {_beginning(encoded[longest])!r}"
        )
    if prompt + sampled > capacity:
        raise InputError(
            f"train.capacity {capacity}: a micro-batch must hold the longest trajectory, {what}: raise train.capacity "
            f"to {prompt + sampled} or more, or lower rollout.max_new_tokens"
        )
    if recipe.train.packing == "fixed":
        _check_packing_count(recipe.train, prompt + sampled, what)
    return prompt + sampled


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


def _extremes(problems: list[Problem]) -> list[Problem]:
    """Return the longest and the shortest problems, and one of each sequence of roles, which a template may refuse."""
    by_length = sorted(problems, key=lambda problem: len(str(problem.prompt)))
    by_roles = {
        tuple(message["role"] for message in problem.prompt): problem
        for problem in problems
        if isinstance(problem.prompt, list)
    }
    return [*by_length[:SHORTEST_PROMPTS], *by_roles.values(), *by_length[-LONGEST_PROMPTS:]]


def _check_packing_count(train: Train, longest: int, what: str) -> None:
    """Check that a micro-batch of `packing: fixed` holds the longest trajectories. Text that an env adds may be more.

    Args:
        longest: tokens of the longest trajectory that is known before the start.
        what: it consists of.

    Raises:
        InputError: it does not.
    """
    tokens = train.packing_count * longest
    if tokens > train.capacity:
        raise InputError(
            f"train.packing_count {train.packing_count}: with train.packing fixed a micro-batch must hold so many "
            f"trajectories, also of the longest, {what}: raise train.capacity from {train.capacity} to {tokens} or "
            f"more, or lower train.packing_count to {train.capacity // longest}"
        )


def _beginning(problem: Problem) -> str:
    text = problem.prompt if isinstance(problem.prompt, str) else problem.prompt[-1]["content"]
    return text[:SHOWN_CHARACTERS]


def _remedy_for_context(prompt: int, sampled: int, context: int) -> str:
    """Say how a prompt and its response could fit into the context."""
    remedies = []
    if prompt < context:
        remedies.append(f"lower rollout.max_new_tokens to {context - prompt}")
    if sampled < context:
        remedies.append(f"leave out long prompts of training with data.max_prompt_tokens {context - sampled}")
    return ", or ".join(remedies) or "use a model with a longer context"
