"""Check, before anything starts, that model and trainer can hold the longest prompts, and that stops can occur."""

from collections.abc import Sequence

from arl.config.recipe import Recipe
from arl.data.model_limits import Limits
from arl.data.text_codec import TextCodec
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError, InputError
from arl.types import Problem

SHORTEST_PROMPTS = 4  # by characters, one of which may have no token at all
LONGEST_PROMPTS = 16  # by characters; the longest by tokens is among them in practice
SHOWN_CHARACTERS = 120  # of a prompt, in a message


def check_prompts(
    problems: Sequence[Problem], codec: TextCodec, limits: Limits, max_new_tokens: int, suite: str | None = None
) -> int:
    """Check that the model can hold the longest prompt with a full answer; return the tokens of both.

    Args:
        max_new_tokens: of an answer.
        suite: whose problems they are; None: those of training.

    Raises:
        DataError: a problem cannot become a prompt of this model.
        InputError: the longest prompt with its answer is too long, or a token is none of the model.
    """
    name = "" if suite is None else f"suite {suite}: "
    encoded: dict[tuple[int, ...], Problem] = {}
    for problem in _extremes(problems):
        try:
            encoded[codec.encode_problem(problem)] = problem
        except DataError as error:
            raise DataError(f"{name}{error}") from error
    if () in encoded:
        raise DataError(f"{name}problem {encoded[()].id}: its prompt has no token of this model's tokenizer; remove it")
    largest = max(max(ids) for ids in [*encoded, codec.stop_token_ids[:1]])
    if largest >= limits.vocab_size:
        raise InputError(
            f"{name or 'model.path: '}the tokenizer makes id {largest}, and the model's ids run from 0 to "
            f"{limits.vocab_size - 1}: give the tokenizer that belongs to the model"
        )
    ids = max(encoded, key=len)
    total = len(ids) + max_new_tokens
    if total > limits.context:
        field = "rollout.max_new_tokens" if suite is None else "eval.max_new_tokens (--max-new-tokens)"
        prompt = encoded[ids].prompt
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        raise InputError(
            f"{name}a prompt of {len(ids)} tokens and {field} {max_new_tokens}, {total} in all, exceed the model's "
            f"context of {limits.context}: lower {field} to {max(limits.context - len(ids), 0)}, or leave out long "
            f"prompts of training with data.max_prompt_tokens {max(limits.context - max_new_tokens, 0)}, or use a "
            f"model with a longer context. The longest is problem {encoded[ids].id}, {text[:SHOWN_CHARACTERS]!r}"
        )
    return total


def check_lengths(recipe: Recipe, problems: list[Problem], codec: HuggingFaceCodec, limits: Limits) -> int:
    """Check that model and trainer can hold the longest trajectory that is known before the start; return its tokens.

    The prompts and rollout.max_new_tokens, which bounds what the policy samples in all turns together, are known before
    the start. Text that an env adds is not; a session leaves out what does not fit, and the episode ends as truncated.

    Raises:
        DataError, InputError: see `check_prompts`, or a micro-batch cannot hold it, or a stop cannot occur.
    """
    sampled = recipe.rollout.max_new_tokens
    longest = check_prompts(problems, codec, limits, sampled)
    lacking = [token for token in recipe.rollout.stop_token_ids if token >= limits.vocab_size]
    if lacking:
        raise InputError(
            f"rollout.stop_token_ids {lacking[0]}: the model has ids 0 to {limits.vocab_size - 1}; give ids of its "
            "tokenizer"
        )
    for string in recipe.rollout.stop:
        written = codec.decode(codec.encode(string))
        if string.strip() not in written:
            raise InputError(
                f"rollout.stop {string!r}: its tokens decode to {written!r}, so no text contains it, as for special "
                "tokens; give their ids in rollout.stop_token_ids instead"
            )
    train = recipe.train
    held = train.packing_count if train.packing == "fixed" else 1  # trajectories of a micro-batch
    if held * longest > train.capacity:
        fewer = "" if held == 1 else f", or lower train.packing_count from {held}"
        raise InputError(
            f"train.capacity {train.capacity}: a micro-batch must hold {held} of the longest trajectory, a prompt of "
            f"{longest - sampled} tokens and rollout.max_new_tokens {sampled}, {longest} in all: raise train.capacity "
            f"to {held * longest} or more, or lower rollout.max_new_tokens{fewer}"
        )
    return longest


def _extremes(problems: Sequence[Problem]) -> list[Problem]:
    """Return the longest and shortest problems, and one of each sequence of roles, which a template may refuse."""
    by_length = sorted(problems, key=lambda problem: len(str(problem.prompt)))
    by_roles = {
        tuple(message["role"] for message in problem.prompt): problem
        for problem in problems
        if isinstance(problem.prompt, list)
    }
    return [*by_length[:SHORTEST_PROMPTS], *by_roles.values(), *by_length[-LONGEST_PROMPTS:]]
