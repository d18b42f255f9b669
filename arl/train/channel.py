"""What the controller and the trainer ranks say to each other: frozen messages, msgpack, arrays as raw buffers.

controller (ROUTER, one port)                        rank r (DEALER, and one for each thread that reports)
                                 ◄── Hello           role, rank and run key
    Init ──► … Ready ◄──                             the model is loaded
    Step ──► … Stepped ◄──                           version v + 1 exists, its snapshot is taken
               Published ◄──                         by rank 0's publisher, while the next step may run
    Save ──► … Copied ◄──
               Saved ◄──                             by rank 0, from the thread that writes
    Stop ──► … Stopped ◄──
               Failed ◄──                            instead of any answer: the rank's traceback; it then ends
"""

from typing import Any

from msgspec import Struct

from arl import arrays
from arl.recipe import Objective, Train
from arl.train.packer import Shard
from arl.types import WeightUpdate

ADDRESS = "ARL_TRAINER_ADDRESS"  # environment of a rank


class _Message(Struct, frozen=True, tag=True):
    pass


class Hello(_Message, frozen=True):
    role: str  # "trainer", or one of rank 0's threads
    rank: int
    run_key: str


class Refused(_Message, frozen=True):
    reason: str


class Init(_Message, frozen=True):
    """All a rank needs to know."""

    model_path: str
    train: dict[str, Any]  # recipe sections as JSON
    objective: dict[str, Any]
    temperature: float
    version: int
    resumed: bool  # model_path is a checkpoint; go on with its optimizer state
    publish_directory: str
    kept_versions: int  # published versions on disk
    collective_seconds: float  # deadline of every collective
    every_version: bool = False  # publish each version, rather than the newest

    def sections(self) -> tuple[Train, Objective]:
        return Train.model_validate(self.train), Objective.model_validate(self.objective)


class Ready(_Message, frozen=True):
    pass


class Step(_Message, frozen=True):
    shard: Shard


class Stepped(_Message, frozen=True):
    version: int
    metrics: dict[str, float]


class Published(_Message, frozen=True):
    update: WeightUpdate


class Save(_Message, frozen=True):
    path: str


class Copied(_Message, frozen=True):
    """The state is copied; training may go on."""


class Saved(_Message, frozen=True):
    version: int


class Ping(_Message, frozen=True):
    """Needs no answer; sending it shows whether a rank is still there."""


class Stop(_Message, frozen=True):
    pass


class Stopped(_Message, frozen=True):
    pass


class Failed(_Message, frozen=True):
    version: int
    trace: str


ToRank = Refused | Ping | Init | Step | Save | Stop
FromRank = Hello | Ready | Stepped | Published | Copied | Saved | Stopped | Failed


def encode(message: Struct) -> bytes:
    return _encoder.encode(message)


def decode_to_rank(data: bytes) -> ToRank:
    message: ToRank = _to_rank.decode(data)
    return message


def decode_from_rank(data: bytes) -> FromRank:
    message: FromRank = _from_rank.decode(data)
    return message


_encoder = arrays.encoder()
_to_rank = arrays.decoder(ToRank)
_from_rank = arrays.decoder(FromRank)
