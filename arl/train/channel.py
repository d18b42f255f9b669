"""Messages between the controller and the trainer ranks: frozen, in msgpack, with arrays as raw buffers.

controller (ROUTER, one port)                        rank r (DEALER, and one for each thread that reports)
                                 ◄── Hello           role, rank, host and pid; its connection has shown the run key
    Init ──► … Ready ◄──                             the model is loaded
    Step ──► … Stepped ◄──                           version v + 1 exists, its snapshot is taken
               Published ◄──                         by rank 0's publisher, while the next step may run
    Save ──► … Copied ◄──
               Saved ◄──                             by every rank, from the thread that writes its part
    Join ──► … Joined ◄──                            a group of engines, by rank 0: arl.sync.broadcast
    Send ──► … Sent ◄──                              by the thread of that group; Leave ends it
    Claim ──► … Claimed ◄──                          by rank 0's thread that keeps what engines need
    Stop ──► … Stopped ◄──
               Failed ◄──                            instead of any answer: the rank's traceback; it then ends
               Left ◄──                              ends every connection
"""

import traceback
from typing import Any, Literal

from msgspec import Struct

from arl.config.recipe import ObjectiveSection, Train
from arl.data import msgpack_arrays
from arl.errors import ArlError, DiskError
from arl.sync.buckets import TensorSpec
from arl.train.packer import SequenceShard
from arl.train.shard import PackSizes
from arl.train.trained_tokens import TokenLogprobs
from arl.types import MetricValue, Transport, WeightUpdate

ADDRESS = "ARL_TRAINER_ADDRESS"  # environment of a rank: where the controller listens
STARTUP_SECONDS = "ARL_STARTUP_SECONDS"  # environment of a rank: seconds until its first message
TRAINER = "trainer"  # role of a rank's main thread
SAVER = "saver"  # role of the thread that writes a rank's part of a checkpoint
PUBLISHER = "publisher"  # role of rank 0's thread that publishes versions
SENDERS = "senders"  # role of rank 0's thread that waits for Join
CLAIMS = "claims"  # role of rank 0's thread that waits for Claim


class _Message(Struct, frozen=True, tag=True):
    """Name the type of a message, so that a union of them can be decoded."""


class Hello(_Message, frozen=True):
    """Open every connection, and say who has connected."""

    role: str  # "trainer", or one of a rank's threads
    rank: int
    host: str  # name of its machine
    pid: int
    address: str = ""  # main thread of rank 0: where the ranks meet
    port: int = 0

    def __str__(self) -> str:
        """Name the sender, as in "trainer of trainer rank 0 (pid 17 on node-3)"."""
        return f"{self.role} of trainer rank {self.rank} (pid {self.pid} on {self.host})"


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
    collective_seconds: float  # deadline of every collective
    buffer_seconds: float  # after which a rank prints why it still waits for memory of older versions
    shutdown_seconds: float  # deadline of what is still being published when Stop arrives
    evidence: str  # directory for what could not be trained
    every_version: bool = False  # publish each version, rather than the newest
    transport: Transport = "file"
    for_nodes: bool = False  # engines on other nodes read what is published as files
    bucket_bytes: int = 512 * 10**6
    sharing_ranks: int = 1  # ipc: ranks, from 0 on, whose memory engines read
    broadcast_seconds: float = 60.0  # deadline of every wait for an engine
    checked_as: str | None = None  # dtype of engines whose weights are compared
    takes_turns: bool = False  # engines use its devices between its steps
    master_address: str = ""  # where the ranks meet; empty: torchrun's environment says it
    master_port: int = 0

    def sections(self) -> tuple[Train, ObjectiveSection]:
        """Return the sections `train` and `objective` of the recipe."""
        train = Train.model_validate(self.train)
        objective = ObjectiveSection.model_validate(self.objective)
        return train, objective


class Ready(_Message, frozen=True):
    tensors: tuple[TensorSpec, ...]  # of every snapshot, in its order


class Step(_Message, frozen=True):
    shard: SequenceShard


class Stepped(_Message, frozen=True):
    version: int
    metrics: dict[str, MetricValue]
    sizes: PackSizes
    busy_seconds: float  # since the first micro-batch was joined
    logprobs: TokenLogprobs | None = None  # of the loss tokens whose places the shard knows


class Published(_Message, frozen=True):
    update: WeightUpdate


class Join(_Message, frozen=True):
    group: str  # also the role of the thread that serves it
    world_size: int


class Joined(_Message, frozen=True):
    host: str
    port: int
    backend: Literal["gloo", "nccl"]


class Send(_Message, frozen=True):
    version: int


class Sent(_Message, frozen=True):
    error: str = ""  # why the group is of no more use


class Leave(_Message, frozen=True):
    pass


class Claim(_Message, frozen=True):
    """Ask rank 0 to keep the newest version that is broadcast, until engines are sent a newer one that is claimed."""

    version: int  # the oldest that serves


class Claimed(_Message, frozen=True):
    version: int


class Save(_Message, frozen=True):
    path: str


class Copied(_Message, frozen=True):
    """Answer Save: this rank's share is copied, so training may continue."""


class Saved(_Message, frozen=True):
    version: int


class Stop(_Message, frozen=True):
    pass


class Stopped(_Message, frozen=True):
    pass


class Failed(_Message, frozen=True):
    version: int
    trace: str
    said: str = ""  # message of an error that arl raises on purpose; empty: any other
    is_of_disk: bool = False  # it was a DiskError


def failed(version: int, error: Exception) -> Failed:
    """Make the message of a failure."""
    return Failed(
        version,
        "".join(traceback.format_exception(error)),
        said=str(error) if isinstance(error, ArlError) else "",
        is_of_disk=isinstance(error, DiskError),
    )


class Left(_Message, frozen=True):
    """Closes a connection: nothing follows, and the controller forgets who it was."""


ToRank = Init | Step | Join | Send | Leave | Claim | Save | Stop
FromRank = Hello | Ready | Stepped | Published | Joined | Sent | Claimed | Copied | Saved | Stopped | Failed | Left


def encode(message: Struct) -> bytes:
    return _encoder.encode(message)


def decode_to_rank(data: bytes) -> ToRank:
    """Decode a message of the controller.

    Raises:
        msgspec.DecodeError: it is none.
    """
    message: ToRank = _to_rank.decode(data)
    return message


def decode_from_rank(data: bytes) -> FromRank:
    """Decode a message of a rank.

    Raises:
        msgspec.DecodeError: it is none.
    """
    message: FromRank = _from_rank.decode(data)
    return message


_encoder = msgpack_arrays.encoder()
_to_rank = msgpack_arrays.decoder(ToRank)
_from_rank = msgpack_arrays.decoder(FromRank)
