"""Check that the prompts of a suite leave room for answers in the model's context."""

from arl.data.model_limits import Limits
from arl.data.text_codec import TextCodec
from arl.errors import DataError, InputError
from arl.run.evaluation.suite import Suite


def check_prompts(suite: Suite, codec: TextCodec, limits: Limits) -> None:
    """Encode every prompt of a suite, and compare it with the model.

    Raises:
        DataError: a problem cannot become a prompt of this model.
        InputError: a prompt with a full answer is longer than the context, or has tokens that the model lacks.
    """
    largest = max(codec.stop_token_ids)
    longest = (0, "")
    for problem in suite.problems:
        try:
            ids = codec.encode_problem(problem)
        except DataError as error:
            raise DataError(f"suite {suite.name}: {error}") from error
        longest = max(longest, (len(ids), problem.id))
        largest = max(largest, *ids)
    if largest >= limits.vocab_size:
        raise InputError(
            f"suite {suite.name}: the tokenizer makes id {largest}, and the model's ids run from 0 to "
            f"{limits.vocab_size - 1}: give the tokenizer that belongs to the model"
        )
    prompt, problem_id = longest
    total = prompt + suite.max_new_tokens
    if total > limits.context:
        room = limits.context - prompt
        remedy = (
            f"at most {room} fit (--max-new-tokens, eval.max_new_tokens)"
            if room > 0
            else "use a model with a longer context"
        )
        sampled = suite.max_new_tokens
        raise InputError(
            f"suite {suite.name}: problem {problem_id} has a prompt of {prompt} tokens, and with {sampled} new ones, "
            f"{total} in all, it exceeds the model's context of {limits.context}: {remedy}"
        )
