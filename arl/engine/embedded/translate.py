"""Translate between SGLang's messages and the engine's types: a request body in, increments out."""

from collections.abc import Iterator
from typing import cast

from arl.engine.http import wire
from arl.errors import EngineError, short_message
from arl.types import GenerateRequest, Increment


def requests_of(body: wire.Generate, names: Iterator[str], eos: tuple[int, ...]) -> list[GenerateRequest]:
    """Return the requests of one POST.

    Args:
        body: one request, or a batch
        names: ids for requests that bring none
        eos: stop tokens of the model, which end every request that does not ignore them

    Raises:
        EngineError: the parts of the batch do not belong together.
    """
    inputs = _inputs(body)
    if len(inputs) > wire.MOST_REQUESTS:
        raise EngineError(
            f"{len(inputs)} requests in one POST: {wire.MOST_REQUESTS} may be, send the others in another"
        )
    num_tokens = sum(map(len, inputs))
    if num_tokens > wire.MOST_TOKENS:
        raise EngineError(f"{num_tokens} input_ids in one POST: {wire.MOST_TOKENS} may be, send the others in another")
    if body.rid is None:
        ids = [next(names) for _ in inputs]
    else:
        given_ids = body.rid if isinstance(body.rid, list) else [body.rid]
        ids = [name or next(names) for name in given_ids]
    given = body.sampling_params or wire.Sampling()
    samplings = given if isinstance(given, list) else [given] * len(inputs)
    if not len(inputs) == len(ids) == len(samplings):
        counts = f"{len(inputs)} input_ids, {len(ids)} rid and {len(samplings)} sampling_params"
        raise EngineError(f"{counts} do not belong together: give one of each for every request")
    requests = []
    for name, input_ids, sampling in zip(ids, inputs, samplings, strict=True):
        requests.append(GenerateRequest(name, tuple(input_ids), sampling.params(eos)))
    return requests


def _inputs(body: wire.Generate) -> list[list[int]]:
    """Return the input of each request: `input_ids` is one input, or a list of them."""
    kinds = set(map(type, body.input_ids))
    if len(kinds) > 1:
        raise EngineError("input_ids mixes ids and lists of ids")
    inputs = body.input_ids if kinds == {list} else [body.input_ids]
    return cast(list[list[int]], inputs)


def chunk_of(
    request: GenerateRequest,
    *,
    index: int,
    new: Increment,
    num_tokens: int,
    loaded_version: int,
    with_logprobs: bool,
) -> wire.Chunk:
    """Return the message for one increment.

    Args:
        request: that it belongs to
        index: of the request in its batch
        new: the increment
        num_tokens: of the request so far, this increment included
        loaded_version: of the engine now
        with_logprobs: the caller asked for them
    """
    meta = wire.MetaInfo(
        id=request.request_id,
        finish_reason=_finish(new, num_tokens),
        weight_versions=wire.spans(new.policy_versions),
        prompt_tokens=len(request.input_ids),
        completion_tokens=num_tokens,
        weight_version=str(loaded_version),
    )
    if with_logprobs:
        pairs = zip(new.logprobs, new.token_ids, strict=True)
        meta.output_token_logprobs = [(logprob, token, None) for logprob, token in pairs]
    return wire.Chunk(output_ids=list(new.token_ids), meta_info=meta, index=index)


def failed_chunk(request: GenerateRequest, index: int, num_tokens: int, error: EngineError) -> wire.Chunk:
    """Return the message for a request that failed alone after `num_tokens` tokens: SGLang calls that an abort."""
    finish = wire.Finish("abort", message=short_message(str(error)))
    meta = wire.MetaInfo(id=request.request_id, finish_reason=finish, completion_tokens=num_tokens)
    return wire.Chunk(output_ids=[], meta_info=meta, index=index)


def _finish(new: Increment, num_tokens: int) -> wire.Finish | None:
    """Return SGLang's message for why a request of `num_tokens` tokens ended; None: it goes on."""
    reason = new.finish_reason
    if reason is None:
        return None
    if reason == "length":
        return wire.Finish(reason, length=num_tokens)
    if reason == "stop":
        return wire.Finish(reason, matched=new.token_ids[-1])
    return wire.Finish(reason, message="aborted")


def joined(old: Increment, new: Increment) -> Increment:
    """Return both increments of one request as one."""
    return Increment(
        token_ids=old.token_ids + new.token_ids,
        logprobs=old.logprobs + new.logprobs,
        policy_versions=old.policy_versions + new.policy_versions,
        finish_reason=new.finish_reason,
    )
