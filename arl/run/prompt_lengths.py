"""Check, before anything starts, that model and trainer can hold the longest prompts, and that stops can occur."""

from collections.abc import Mapping, Sequence

from arl.config.recipe import Recipe
from arl.data.model_limits import Limits
from arl.data.row_problems import Candidate
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError, InputError
from arl.rollout.tools import specs_of


def fitting_prompts(
    recipe: Recipe,
    codec: HuggingFaceCodec,
    limits: Limits,
    candidates: Sequence[Candidate],
    notes: list[str],
    suite: str | None = None,
) -> tuple[list[Candidate], int]:
    """Measure every prompt in tokens. Return those that are not left out, and the longest with a full answer, tokens.

    Args:
        notes: gets a line about what is left out, and one about prompts with control tokens.
        suite: whose problems they are; None: those of training.

    Raises:
        DataError: a problem cannot become a prompt of this model.
        InputError: the longest prompt with its answer is too long, a token is none of the model, or the tokenizer lacks
            a character.
    """
    name = "" if suite is None else f"suite {suite}: "
    longest = recipe.data.max_prompt_tokens if suite is None else None
    lengths: dict[int, Candidate] = {}  # the first of each length
    kept = []
    controlled = []
    sources = codec.stop_sources | {key: ["rollout.stop_token_ids"] for key in recipe.rollout.stop_token_ids}
    largest = max(sources)
    taken: Candidate | None = None
    problems = ((taken := candidate).problem for candidate in candidates)
    tools = specs_of(recipe.rollout.tools)
    try:
        for candidate, ids in zip(candidates, codec.prompts.encode(problems, tools), strict=True):
            if longest is not None and len(ids) > longest:
                continue
            if lacking := codec.lacking_characters(candidate.problem, ids):
                raise InputError(
                    f"{name}{candidate}: its prompt has {lacking!r}, for which this model's tokenizer has no token; "
                    "remove it from the rows"
                )
            kept.append(candidate)
            lengths.setdefault(len(ids), candidate)
            largest = max([largest, *ids])
            if recipe.data.chat_template and (text := codec.control_text(candidate.problem)):
                controlled.append(f"{text!r} in {candidate}")
    except DataError as error:
        raise DataError(f"{name}{taken}: {error}") from error
    if 0 in lengths:
        raise DataError(f"{name}{lengths[0]}: its prompt has no token of this model's tokenizer; remove it")
    _check_id(largest, sources, limits, name)
    if left_out := len(candidates) - len(kept):
        notes.append(f"{left_out:,} prompts longer than data.max_prompt_tokens {longest:,} left out")
    if controlled:
        notes.append(
            f"{name}{len(controlled):,} of {len(kept):,} prompts hold control tokens, which the model takes for the "
            f"end or the beginning of a turn: {controlled[0]}. Take them out of the rows; if these are rendered "
            "prompts, set data.chat_template to false"
        )
    length = max(lengths, default=0)
    return kept, _check_length(recipe, limits, length, suite, str(lengths.get(length)))


def _check_length(recipe: Recipe, limits: Limits, length: int, suite: str | None, place: str) -> int:
    """Return the tokens of the longest prompt with a full answer; raise where they do not fit."""
    name, field, answer = "", "rollout.max_new_tokens", recipe.rollout.max_new_tokens
    if suite is not None:
        name, field = f"suite {suite}: ", "eval.max_new_tokens (--max-new-tokens)"
        answer = recipe.eval.max_new_tokens or answer
    if length + answer > limits.context:
        remedies = []
        if length < limits.context:
            remedies.append(f"lower {field} to {limits.context - length}")
        if answer < limits.context and suite is None:
            remedies.append(f"leave out long prompts with data.max_prompt_tokens {limits.context - answer}")
        raise InputError(
            f"{name}a prompt of {length} tokens and {field} {answer}, {length + answer} in all, exceed the model's "
            f"context of {limits.context}: {', '.join([*remedies, 'use a model with a longer context'])}. The "
            f"longest is {place}"
        )
    return length + answer


def _check_id(largest: int, sources: Mapping[int, list[str]], limits: Limits, name: str) -> None:
    """Raise where a token is none of the model. Args: sources: what names end tokens."""
    if largest >= limits.vocab_size:
        named = ", ".join(sources.get(largest, ["id of the tokenizer"]))
        raise InputError(
            f"{name}{named} {largest}: the model's ids run from 0 to {limits.vocab_size - 1}; correct it, or give the "
            "tokenizer that belongs to the model"
        )


def check_lengths(recipe: Recipe, longest: int, codec: HuggingFaceCodec) -> None:
    """Check that the trainer can hold the longest trajectory that is known before the start.

    The prompts and rollout.max_new_tokens, which bounds what the policy samples in all turns together, are known before
    the start. Text that an env adds is not; a session leaves out what does not fit, and the episode ends as truncated.

    Args:
        longest: prompt with a full answer, tokens.

    Raises:
        InputError: a micro-batch cannot hold it, or a stop cannot occur.
    """
    sampled = recipe.rollout.max_new_tokens
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
