"""Define SGLang's HTTP protocol as typed messages, for arl's server and arl's client alike. Torch-free.

   {"input_ids": [[1, 2], [3]], "rid": ["a", "b"], "sampling_params": [{…}, {…}], "stream": true, …}
─► data: {"index": 1, "output_ids": [7], "meta_info": {"output_token_logprobs": [[-0.4, 7, null]], "weight_versions":
          [{"version": "3", "start": 0, "end": 1}], "completion_tokens": 1, "finish_reason": null, …}}
─► data: [DONE]

Fields that arl never sets have the one value that arl needs; of answers there are only the fields that arl reads.
"""

from itertools import groupby
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, astuple

from arl.engine.base import IDLE, Load
from arl.types import SamplingParams

DONE = b"[DONE]"
Triple = tuple[float | None, int, Any]  # logprob, id, text
PauseMode = Literal["in_place", "retract"]


class Sampling(Struct, forbid_unknown_fields=True, omit_defaults=True, rename={"seed": "sampling_seed"}):
    """Hold SamplingParams under SGLang's names. `ignore_eos` also ignores stop_token_ids, as it does there.

    `seed` has no default, because a default is left out of the message: under --enable-deterministic-inference SGLang
    then takes 42, and a whole group samples alike.
    """

    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @property
    def params(self) -> SamplingParams:
        """Return them as arl's own type."""
        return msgspec.convert(self, SamplingParams, from_attributes=True)


def sampling_of(params: SamplingParams) -> Sampling:
    """Translate arl's sampling parameters; a request without stop tokens ignores those of the model as well."""
    return Sampling(**asdict(params), ignore_eos=not params.stop_token_ids)


class Generate(Struct, forbid_unknown_fields=True):
    """Ask for a batch of requests, to be answered as a stream."""

    input_ids: list[tuple[int, ...]]
    rid: list[str]
    sampling_params: list[Sampling]
    extra_key: list[str] | None = None  # separates prefixes in SGLang's cache; the embedded engine keeps none
    stream: bool = True
    return_logprob: bool = True


class Score(Struct, forbid_unknown_fields=True):
    """Ask for the log-probabilities of given tokens, in one answer."""

    input_ids: tuple[int, ...]
    rid: str
    sampling_params: Sampling
    logprob_start_len: int  # SGLang's list begins with this token, which has no number
    top_logprobs_num: int
    stream: bool = False
    return_logprob: bool = True


class InputInfo(Struct):
    """Hold (logprob, id, text) of tokens that were given, and the likeliest at each place."""

    input_token_logprobs: list[Triple]
    input_top_logprobs: list[list[Triple] | None] = []


class ScoreAnswer(Struct):
    """Answer Score."""

    meta_info: InputInfo


class Span(Struct):
    """Say which version sampled tokens `start` to `end`, the end excluded."""

    version: str
    start: int
    end: int


class Finish(Struct, omit_defaults=True):
    """Say why a request has ended."""

    type: Literal["stop", "length", "abort"]
    message: str | None = None


class MetaInfo(Struct, omit_defaults=True):
    """Describe the tokens of an increment.

    `weight_versions` are of these tokens or of all tokens of the call so far. By itself SGLang sends them with the last
    increment only; arl's plugin (engine/sglang/server_plugin.py) has it send them with each.
    """

    completion_tokens: int
    finish_reason: Finish | None = None
    weight_versions: list[Span] = []
    output_token_logprobs: list[tuple[float, int, Any]] = []


class Chunk(Struct):
    """Carry one increment of one request of a batch."""

    output_ids: list[int]
    meta_info: MetaInfo
    index: int = 0


class Pause(Struct):
    """Stop generating between two passes; open requests keep their cache, or are put back in line without it."""

    mode: PauseMode


class Abort(Struct):
    """End one request, or all. SGLang ends every request whose id begins with `rid`."""

    rid: str = ""
    abort_all: bool = False


class ModelInfo(Struct):
    """Say where the server's weights began, and their version."""

    model_path: str
    weight_version: str


class RankLoad(Struct):
    """Report the load of one scheduler, in the order of Load. SGLang sends more fields."""

    num_running_reqs: int
    num_waiting_reqs: int
    max_running_requests: int
    num_total_tokens: int  # in the cache, or waiting for it
    max_total_num_tokens: int


class Loads(Struct):
    """Report the loads of all schedulers; with data parallelism SGLang has several."""

    loads: list[RankLoad]

    @property
    def total(self) -> Load:
        """Return the load of all schedulers together. A server on which none has reported yet has had nothing to do.

        >>> Loads([RankLoad(1, 2, 8, 100, 1000), RankLoad(3, 0, 8, 60, 1000)]).total
        Load(running=4, waiting=2, slots=16, tokens=160, capacity=2000)
        >>> Loads([]).total.free(requests=0, tokens=0)
        1.0
        """
        if not self.loads:
            return IDLE
        fields = zip(*(astuple(rank) for rank in self.loads), strict=True)
        return Load(*(sum(field) for field in fields))


def spans(versions: tuple[int, ...]) -> list[Span]:
    """Turn one version per token into runs of equal versions.

    >>> spans((3, 3, 4))
    [Span(version='3', start=0, end=2), Span(version='4', start=2, end=3)]
    """
    runs = []
    start = 0
    for version, run in groupby(versions):
        end = start + len(list(run))
        runs.append(Span(str(version), start, end))
        start = end
    return runs


# ---- weights


class UpdateFromDisk(Struct):
    """Load the weights of a directory."""

    model_path: str
    weight_version: str
    flush_cache: bool = False


class InitGroup(Struct):
    """Join a process group whose rank 0 is the trainer's."""

    group_name: str
    master_address: str
    master_port: int
    rank_offset: int  # of the server's first worker
    world_size: int
    backend: Literal["gloo", "nccl"]


class LeaveGroup(Struct):
    """Leave a process group."""

    group_name: str


BUCKETS = "buckets:"  # begins a load format of arl's own: see arl/engine/sglang/server_plugin.py


class UpdateFromDistributed(Struct):
    """Receive a version, bucket by bucket."""

    group_name: str
    names: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    weight_version: str
    load_format: str  # BUCKETS, then how many of the tensors are in each bucket: buckets:12,14,9
    flush_cache: bool = False

    def bucket_lengths(self) -> list[int]:
        """Return how many of the tensors, in order, are in each bucket."""
        return [int(count) for count in self.load_format.removeprefix(BUCKETS).split(",")]


class Checksums(Struct):
    """Hold the checksums of one worker: name -> sha256."""

    checksums: dict[str, str]


class Checked(Struct):
    """Hold the checksums of each worker."""

    ranks: list[Checksums]
