"""Messages between the controller and the trainer ranks: frozen, in msgpack, with arrays as raw buffers.

controller (ROUTER, one port)                    rank r (DEALER, one link for all of its threads)
                                  ◄── Hello      by a rank that knows the run key
    RankRequest(id, to, body) ──►                `to` names the thread that serves it
                                  ◄── RankAnswer to the request with this id; they may come in any order
                                  ◄── Published  by rank 0's publisher, while the next step may run
                                  ◄── Failed     the rank's traceback; it then ends, and so does every wait

    request    served by     its answer
    Init       MAIN          Ready: the model is loaded
    Step       MAIN          Stepped: version v + 1 exists, its snapshot is taken
    Copy       MAIN          this rank's share of a checkpoint is copied, so training may continue
    Write      the saver     what was copied is in its file
    Join       SENDERS       Joined: where a new group of engines finds rank 0 (arl.train.publication)
    Send       its group     the version was broadcast
    Leave      its group     the group is forgotten
    Claim      CLAIMS        Claimed: the version that rank 0 keeps for engines
    Stop       MAIN          what was still being published is finished
"""

import traceback
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from arl.config.recipe import AdvantageSection, ObjectiveSection, Train
from arl.data import msgpack_arrays
from arl.errors import ArlError, DiskError
from arl.sync.buckets import BUCKET_BYTES, TensorSpec
from arl.train.micro_batch import PackSizes
from arl.train.packing import SequencePack, Shard, TokenLogprobs
from arl.types import MetricValue, Transport, WeightUpdate

ADDRESS = "ARL_TRAINER_ADDRESS"  # environment of a rank: where the controller listens
MAIN = "trainer"  # a rank's main thread
SENDERS = "senders"  # rank 0's thread that opens groups of engines; each group has a thread of its own name
CLAIMS = "claims"  # rank 0's thread that keeps the versions that engines may ask for


class _Message(Struct, frozen=True, tag=True):
    """Name the type of a message, so that a union of them can be decoded."""


class Hello(_Message, frozen=True):
    """Open a rank's connection."""

    rank: int
    host: str  # name of its machine
    pid: int
    address: str = ""  # rank 0: where the ranks meet
    port: int = 0

    def __str__(self) -> str:
        """Name the sender, as in "trainer rank 0 (pid 17 on node-3)"."""
        return f"trainer rank {self.rank} (pid {self.pid} on {self.host})"


class Init(_Message, frozen=True):
    """Hold all that a rank needs to know before it loads the model."""

    model_path: str
    train: dict[str, Any]  # recipe sections as JSON
    objective: dict[str, Any]
    temperature: float
    version: int
    resumed: bool  # model_path is a checkpoint; continue with its optimizer state
    publish_directory: str
    kept_versions: int  # published versions that are not discarded
    collective_seconds: float  # deadline of every collective, and of a wait for the memory of older versions
    shutdown_seconds: float  # deadline of what is still being published when Stop arrives
    oldest_age: int = 0  # of a token, versions
    every_version: bool = False  # publish each version, rather than the newest
    transport: Transport = "file"
    for_nodes: bool = False  # engines on other nodes read what is published as files
    bucket_bytes: int = BUCKET_BYTES  # of which an engine holds two: one is loaded while the next arrives
    sharing_ranks: int = 1  # ipc: ranks, from 0 on, whose memory engines read
    broadcast_seconds: float = 60.0  # deadline of every wait for an engine
    checked_as: str | None = None  # dtype of engines whose weights are compared
    advantage: dict[str, Any] = {}  # recipe section as JSON, if ranks compute it
    takes_turns: bool = False  # engines use its devices between its steps
    seed: int = 0  # of what the ranks draw
    publishes_adapters: bool = False  # of LoRA, and not merged weights
    master_address: str = ""  # where the ranks meet; empty: torchrun's environment says it
    master_port: int = 0

    def sections(self) -> tuple[Train, ObjectiveSection, AdvantageSection]:
        """Return the sections `train`, `objective` and `advantage` of the recipe, the last one if ranks compute it."""
        train = Train.model_validate(self.train)
        objective = ObjectiveSection.model_validate(self.objective)
        return train, objective, AdvantageSection.model_validate(self.advantage)


class Ready(_Message, frozen=True):
    tensors: tuple[TensorSpec, ...]  # of every snapshot, in its order


class Step(_Message, frozen=True):
    shard: Shard[SequencePack]


class Stepped(_Message, frozen=True):
    version: int
    metrics: dict[str, MetricValue]
    sizes: PackSizes
    busy_seconds: float  # since the first micro-batch was joined
    logprobs: TokenLogprobs | None = None  # of the loss tokens whose places the shard knows


class Copy(_Message, frozen=True):
    """Ask for a copy of this rank's share of a checkpoint; the one before has been written."""


class Write(_Message, frozen=True):
    path: str


class Join(_Message, frozen=True):
    group: str
    world_size: int


class Joined(_Message, frozen=True):
    host: str
    port: int
    backend: Literal["gloo", "nccl"]


class Send(_Message, frozen=True):
    version: int


class Leave(_Message, frozen=True):
    pass


class Claim(_Message, frozen=True):
    """Ask rank 0 to keep the newest version that is broadcast, until engines are sent a newer one that is claimed."""

    version: int  # the oldest that serves


class Claimed(_Message, frozen=True):
    version: int


class Stop(_Message, frozen=True):
    pass


Body = Init | Step | Copy | Write | Join | Send | Leave | Claim | Stop


class RankRequest(Struct, frozen=True):
    """Ask one thread of a rank for something."""

    id: int
    to: str
    body: Body


class RankAnswer(_Message, frozen=True):
    """Answer a request."""

    id: int
    body: Ready | Stepped | Joined | Claimed | None = None
    error: str = ""  # why it was not done, though the rank goes on: a group of engines broke


class Published(_Message, frozen=True):
    update: WeightUpdate


class Failed(_Message, frozen=True):
    thread: str
    version: int
    text: str  # message of an error that arl raises on purpose, else a traceback
    is_expected: bool  # arl raises it on purpose
    is_of_disk: bool  # it was a DiskError

    @classmethod
    def of(cls, thread: str, version: int, error: Exception) -> "Failed":
        """Make the message of a failure."""
        is_expected = isinstance(error, ArlError)
        return cls(
            thread=thread,
            version=version,
            text=str(error) if is_expected else "".join(traceback.format_exception(error)),
            is_expected=is_expected,
            is_of_disk=isinstance(error, DiskError),
        )


FromRank = Hello | RankAnswer | Published | Failed


encode: Callable[[Struct], bytes] = msgpack_arrays.encoder().encode
# Both raise msgspec.DecodeError, a ValueError, for bytes that are no message.
decode_request: Callable[[bytes], RankRequest] = msgpack_arrays.decoder(RankRequest).decode
decode_from_rank: Callable[[bytes], FromRank] = msgpack_arrays.decoder(FromRank).decode
