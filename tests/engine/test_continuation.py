"""Cut a request anywhere and continue it: it samples what the whole would have, and ends for the same reason."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from arl.engine.continuation import Continuation
from arl.types import FinishReason, GenerateRequest, SamplingParams

VOCABULARY = 8


def sampled(input_ids: tuple[int, ...], seed: int) -> int:
    """Return the token that an engine whose seeds count samples after `input_ids`."""
    return hashlib.sha256(f"{seed} {input_ids}".encode()).digest()[0] % VOCABULARY


def generate(request: GenerateRequest, limit: int) -> tuple[list[int], FinishReason | None]:
    """Return up to `limit` tokens of an engine, and why it ended by itself, if it did."""
    tokens: list[int] = []
    while len(tokens) < limit:
        token = sampled((*request.input_ids, *tokens), request.sampling.seed)
        tokens.append(token)
        if token in request.sampling.stop_token_ids:
            return tokens, "stop"
        if len(tokens) == request.sampling.max_new_tokens:
            return tokens, "length"
    return tokens, None


REQUESTS = st.builds(
    GenerateRequest,
    st.just("r"),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3).map(tuple),
    st.builds(
        SamplingParams,
        max_new_tokens=st.integers(1, 12),
        stop_token_ids=st.lists(st.integers(0, VOCABULARY - 1), max_size=2).map(tuple),
        seed=st.integers(0, 99),
    ),
)


@given(
    request=REQUESTS,
    cuts=st.lists(st.integers(0, 6), max_size=20),
    hides=st.booleans(),
    broken=st.sampled_from([None, "abort"]),
)
def test_a_request_in_pieces_is_the_whole_request(
    request: GenerateRequest, cuts: list[int], hides: bool, broken: FinishReason | None
) -> None:
    """`hides`: the cut comes just when the request has ended, so that its own reason is never heard."""
    whole, expected = generate(request, limit=100)
    continuation = Continuation(request)
    reason: FinishReason | None = None
    pieces = iter(cuts)
    while reason in (None, "abort"):
        tokens, ended = generate(continuation.rest(), limit=next(pieces, 100))
        continuation.add(tokens)
        reason = continuation.finish(broken if hides or ended is None else ended)
    assert continuation.sampled == whole
    assert reason == expected
    assert continuation.budget == request.sampling.max_new_tokens - len(whole)


def test_a_stop_that_only_the_server_knows_of_ends_the_request() -> None:
    """An end-of-text token of the model is one that the request need not list."""
    continuation = Continuation(GenerateRequest("r", (1,), SamplingParams(max_new_tokens=2)), [5, 6])
    assert continuation.finish("stop") == "stop"
