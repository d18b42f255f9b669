"""Define SGLang's HTTP protocol as typed messages, for arl's server and arl's client alike. Torch-free.

   {"input_ids": [[1, 2], [3]], "rid": ["a", "b"], "sampling_params": {…}, "stream": true, …}
─► data: {"index": 1, "output_ids": [7], "meta_info": {"id": "b", "output_token_logprobs": [[-0.4, 7, null]],
          "weight_version": "3", "completion_tokens": 1, "finish_reason": null, …}}
─► data: [DONE]
"""

import re
from itertools import groupby
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from arl.engine.base import IDLE, MIN_TEMPERATURE, Load
from arl.sync.weight_loader import MemoryTag
from arl.types import SamplingParams

DONE = b"[DONE]"
MAX_BYTES = 32 << 20  # of a request's body
MAX_REQUESTS = 4096  # in one POST
MAX_TOKENS = 1 << 21  # in one POST; even with eight digits each they fit MAX_BYTES

MAX_VERSION = 2**31 - 1  # engines and trajectories keep the version of each token in an int32
BUCKETS = "flattened_bucket"  # SGLang's load format for tensors that lie one after the other in one tensor of bytes
DEFAULT_GROUP = "weight_update_group"  # SGLang's

Int32 = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Sampling(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Hold sampling parameters under SGLang's names. `ignore_eos` also ignores stop_token_ids, as it does there.

    `sampling_seed` has no number as its default, because a default is left out of the message: under
    --enable-deterministic-inference SGLang then takes 42, and a whole group samples alike.
    """

    max_new_tokens: Int32 = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    stop_token_ids: list[Int32] | None = None
    ignore_eos: bool = False
    sampling_seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None

    def params(self, eos: tuple[int, ...]) -> SamplingParams:
        """Return them as arl's own type, for a model whose stop tokens are `eos`.

        A temperature of 0, or one so low that only the likeliest token is left, is greedy, as there.
        """
        stops: tuple[int, ...] = ()
        if not self.ignore_eos:
            own = self.stop_token_ids or ()
            stops = (*own, *eos)
        is_greedy = 0 <= self.temperature < MIN_TEMPERATURE
        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            temperature=1.0 if is_greedy else self.temperature,
            top_p=self.top_p,
            top_k=1 if is_greedy else self.top_k,
            stop_token_ids=stops,
            seed=self.sampling_seed or 0,
        )


def sampling_of(params: SamplingParams) -> Sampling:
    """Translate arl's sampling parameters; a request without stop tokens ignores those of the model as well."""
    stops = list(params.stop_token_ids)
    return Sampling(
        max_new_tokens=params.max_new_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        stop_token_ids=stops or None,
        ignore_eos=not stops,
        sampling_seed=params.seed,
    )


class Generate(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Ask for one request, or for a batch when `input_ids` holds lists."""

    input_ids: list[Int32 | list[Int32]]
    rid: str | list[str] | None = None
    sampling_params: Sampling | list[Sampling] | None = None
    stream: bool = False
    return_logprob: bool | None = False
    extra_key: str | list[str] | None = None  # separates prefixes in SGLang's cache; the embedded engine keeps none


class Span(Struct):
    """Say which version sampled tokens `start` to `end`, the end excluded."""

    version: str
    start: int
    end: int


class Finish(Struct, omit_defaults=True):
    """Say why a request has ended."""

    type: Literal["stop", "length", "abort"]
    length: int | None = None
    matched: int | str | None = None
    message: str | None = None


class MetaInfo(Struct, omit_defaults=True):
    """Describe the tokens of an increment.

    SGLang sends `weight_versions` with the last increment only, for all tokens of the call; before 0.5.18, never.
    """

    id: str
    finish_reason: Finish | None
    weight_versions: list[Span] | None = None
    output_token_logprobs: list[tuple[float, int, Any]] = []
    prompt_tokens: int = 0
    completion_tokens: int = 0
    weight_version: str = ""


class Chunk(Struct, omit_defaults=True):
    """Carry one increment of one request of a batch."""

    output_ids: list[int]
    meta_info: MetaInfo
    index: int = 0


class Pause(Struct, forbid_unknown_fields=True):
    """Stop generating; the mode says what becomes of open requests, see EmbeddedEngine.pause."""

    mode: Literal["abort", "in_place", "retract"] = "abort"


class Abort(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """End one request, or all. SGLang ends every request whose id begins with `rid`."""

    rid: str = ""
    abort_all: bool = False


class Nothing(Struct):
    """Send an object in which nothing counts."""


class ModelInfo(Struct):
    """Describe the server's model. The last three fields are ours; SGLang leaves them out."""

    model_path: str
    weight_version: str
    vocab_size: int | None = None
    context_length: int | None = None


class RankLoad(Struct):
    """Report the load of one scheduler. SGLang sends more fields, and has several schedulers with data parallelism."""

    num_running_reqs: int
    num_waiting_reqs: int
    max_running_requests: int
    num_total_tokens: int  # in the cache, or waiting for it
    max_total_num_tokens: int


class Loads(Struct):
    """Report the loads of all schedulers."""

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
        return Load(
            running=sum(rank.num_running_reqs for rank in self.loads),
            waiting=sum(rank.num_waiting_reqs for rank in self.loads),
            slots=sum(rank.max_running_requests for rank in self.loads),
            tokens=sum(rank.num_total_tokens for rank in self.loads),
            capacity=sum(rank.max_total_num_tokens for rank in self.loads),
        )


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


def version_number(text: str) -> int:
    """Return the number of a version, which SGLang's protocol carries as text.

    Raises:
        ValueError: it is none that fits.
    """
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > MAX_VERSION:
        raise ValueError(f"version {text[:40]!r} must be an integer from 0 to {MAX_VERSION}, as a string")
    return int(text)


# ---- weights


class Memory(Struct, forbid_unknown_fields=True):
    """Name the memory that a server releases, or takes again."""

    tags: list[MemoryTag] | None = None  # all of it


class UpdateFromDisk(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Load the weights of a directory."""

    model_path: str
    weight_version: str | None = None  # the server keeps the one it has
    flush_cache: bool = True
    load_format: Literal["auto", "safetensors"] | None = None


class InitGroup(Struct, forbid_unknown_fields=True):
    """Join a process group whose rank 0 is the trainer's."""

    master_address: str
    master_port: int
    rank_offset: int  # of the server's first worker
    world_size: int
    group_name: str = DEFAULT_GROUP
    backend: Literal["gloo", "nccl"] = "nccl"


class LeaveGroup(Struct, forbid_unknown_fields=True):
    """Leave a process group, and drop what was received in it without its version."""

    group_name: str = DEFAULT_GROUP


class UpdateFromDistributed(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Receive one bucket. The last one carries the version."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = DEFAULT_GROUP
    load_format: str | None = None
    weight_version: str | None = None
    flush_cache: bool = True


class UpdateFromTensor(Struct, omit_defaults=True):
    """Map one bucket of shared memory. Only SGLang understands it."""

    serialized_named_tensors: list[bytes]  # base64 in JSON; one for each of the server's workers
    weight_version: str | None = None
    flush_cache: bool = True


class CheckWeights(Struct, forbid_unknown_fields=True):
    """Ask for the checksums of all weights."""

    action: Literal["checksum"] = "checksum"


class Checksums(Struct):
    """Hold the checksums of one worker: name -> sha256."""

    checksums: dict[str, str]


class Checked(Struct):
    """Answer CheckWeights, with one entry for each worker."""

    ranks: list[Checksums]
