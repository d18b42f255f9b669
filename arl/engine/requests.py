"""Refuse requests that no engine can serve."""

from arl.errors import EngineError
from arl.types import GenerateRequest

MIN_TEMPERATURE = 1e-6  # logits are divided by it in float32; SGLang takes lower ones for greedy
MAX_TEMPERATURE = 1e6
MAX_ID = 2**31 - 1  # ids and top_k are kept as int32


def refuse_impossible(request: GenerateRequest, vocab_size: int, context: int) -> None:
    """Check a request against a model of `vocab_size` tokens and a context of `context` tokens.

    Raises:
        EngineError: naming the request, the value, the rule and the remedy.
    """
    ids = request.input_ids
    sampling = request.sampling
    name = f"request {request.request_id}"
    if not ids:
        raise EngineError(f"{name}: input_ids is empty: give at least one token")
    if sampling.max_new_tokens < 1:
        raise EngineError(f"{name}: max_new_tokens {sampling.max_new_tokens} must be at least 1")
    total = len(ids) + sampling.max_new_tokens
    if total > context:
        raise EngineError(
            f"{name}: {len(ids)} input tokens + max_new_tokens {sampling.max_new_tokens} = {total} exceed "
            f"the model's context of {context}: shorten the prompt or the budget"
        )
    if min(ids) < 0 or max(ids) >= vocab_size:  # once there are few enough to look at each
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise EngineError(f"{name}: id {wrong} is outside the vocabulary: ids run from 0 to {vocab_size - 1}")
    if not MIN_TEMPERATURE <= sampling.temperature <= MAX_TEMPERATURE:
        limits = f"from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
        raise EngineError(f"{name}: temperature {sampling.temperature} must lie {limits}; top_k 1 is greedy")
    if not 0 < sampling.top_p <= 1:
        raise EngineError(f"{name}: top_p {sampling.top_p} must lie in (0, 1]")
    if sampling.top_k != -1 and not 1 <= sampling.top_k <= MAX_ID:
        raise EngineError(f"{name}: top_k {sampling.top_k} must be −1 (all) or from 1 to {MAX_ID}")
    stops = sampling.stop_token_ids
    if stops and (min(stops) < 0 or max(stops) > MAX_ID):
        raise EngineError(f"{name}: stop_token_ids must be from 0 to {MAX_ID}; leave out what is no id")
