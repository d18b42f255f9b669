"""What the controller and the trainer ranks say to each other: frozen messages, msgpack, arrays as raw buffers.

controller (ROUTER, one port)                        rank r (DEALER "r", and "publisher" on rank 0)
                                 ◄── Hello           role, rank and run key
    Init ──► … Ready ◄──                             the model is loaded
    Step ──► … Stepped ◄──                           version v + 1 exists, its snapshot is taken
               Published ◄──                         by rank 0's publisher, while the next step may run
    Save ──► … Saved ◄──
    Stop ──► … Stopped ◄──
               Failed ◄──                            instead of any answer: the rank's traceback; it then ends
"""

from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from arl.recipe import Objective, Train
from arl.train.packer import Shard
from arl.types import WeightUpdate

ADDRESS = "ARL_TRAINER_ADDRESS"  # environment of a rank


class _Message(Struct, frozen=True, tag=True):
    pass


class Hello(_Message, frozen=True):
    role: str  # "trainer" or "publisher"
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


class Saved(_Message, frozen=True):
    path: str


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
FromRank = Hello | Ready | Stepped | Published | Saved | Stopped | Failed


def encode(message: Struct) -> bytes:
    return _encoder.encode(message)


def decode_to_rank(data: bytes) -> ToRank:
    message: ToRank = _to_rank.decode(data)
    return message


def decode_from_rank(data: bytes) -> FromRank:
    message: FromRank = _from_rank.decode(data)
    return message


def _pack_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).data
    raise TypeError(f"{type(value)} has no place in a message")


def _unpack_array(expected: type, value: Any) -> Any:
    if expected is np.ndarray:
        dtype, shape, data = value
        # A copy: torch wants to own memory it may write to.
        return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()
    raise TypeError(f"{expected} has no place in a message")


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack_array)
_to_rank = msgspec.msgpack.Decoder(ToRank, dec_hook=_unpack_array)
_from_rank = msgspec.msgpack.Decoder(FromRank, dec_hook=_unpack_array)
