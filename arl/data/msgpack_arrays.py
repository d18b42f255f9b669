"""msgpack with numpy arrays as raw buffers: what processes say to each other, and what a checkpoint holds."""

from typing import Any

import msgspec
import numpy as np


def encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=_pack)


def decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(type_, dec_hook=_unpack)


def _pack(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).data
    raise TypeError(f"{type(value)} has no place in a message")


def _unpack(expected: type, value: Any) -> Any:
    if expected is np.ndarray:
        dtype, shape, data = value
        # A copy: torch wants to own memory it may write to.
        return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()
    raise TypeError(f"{expected} has no place in a message")
