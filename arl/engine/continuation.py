"""Continue a request that was cut short, and decide when it has ended: one rule for every place that continues some.

A call of a server ends early at a pause (arl.engine.http.batch_sender sends the rest), a replica is lost
(arl.engine.router), or a run is resumed in the middle of a turn (arl.rollout.env). Each of them keeps a Continuation,
adds the tokens that arrive, and asks an engine for `rest()`, until `finish` gives a reason.
"""

from array import array
from collections.abc import Iterable

from msgspec.structs import replace

from arl.types import FinishReason, GenerateRequest


class Continuation:
    """Keep a request, and the tokens that engines have sampled for it so far.

    Logprobs and versions are not kept: whoever continues has handed them on, and an engine needs only the tokens.

    >>> from arl.types import SamplingParams
    >>> whole = GenerateRequest("r", (1, 2), SamplingParams(max_new_tokens=3, stop_token_ids=(0,)))
    >>> cut = Continuation(whole, [7])
    >>> cut.rest().input_ids, cut.rest().sampling.max_new_tokens, cut.finish("abort")
    ((1, 2, 7), 2, 'abort')
    >>> cut.add([0])
    >>> cut.finish("abort")
    'stop'
    """

    def __init__(self, request: GenerateRequest, sampled: Iterable[int] = ()) -> None:
        self.request = request
        self._sampled = array("i", sampled)  # four bytes a token, because a run holds those of every open request

    def add(self, token_ids: Iterable[int]) -> None:
        """Append tokens that an engine has sampled."""
        self._sampled.extend(token_ids)

    @property
    def budget(self) -> int:
        """Return the number of tokens that may still be sampled."""
        return self.request.sampling.max_new_tokens - len(self._sampled)

    def rest(self) -> GenerateRequest:
        """Return the request for what is left; where seeds count, it samples what the whole request would have."""
        if not self._sampled:
            return self.request
        input_ids = (*self.request.input_ids, *self._sampled)
        sampling = replace(self.request.sampling, max_new_tokens=self.budget)
        return replace(self.request, input_ids=input_ids, sampling=sampling)

    def finish(self, reason: FinishReason | None) -> FinishReason | None:
        """Return why the whole request has ended; "abort" or None: it has not, `rest()` is to be asked for.

        A stop token wins over a spent budget, and both win over an abort or a loss that came at the same time.

        Args:
            reason: what the last call ended with; None: it broke off
        """
        has_stopped = self._sampled and self._sampled[-1] in self.request.sampling.stop_token_ids
        if reason == "stop" or has_stopped:
            return "stop"
        return "length" if self.budget == 0 else reason
