"""Encode numpy arrays in msgpack as raw buffers, for messages between processes and for checkpoints."""

from typing import Any

import msgspec
import numpy as np

_Packed = tuple[str, tuple[int, ...], bytes]  # name of the dtype, shape, values


def encoder() -> msgspec.msgpack.Encoder:
    """Make an encoder that takes structs with numpy arrays."""
    return msgspec.msgpack.Encoder(enc_hook=_pack)


def decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    """Make a decoder of messages of `type_`; arrays own their memory and may be written to."""
    return msgspec.msgpack.Decoder(type_, dec_hook=_unpack)


def _pack(value: Any) -> Any:
    """Turn an array into its type, shape and bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).data
    raise TypeError(f"{type(value)} cannot be sent in a message")


def _unpack(expected: type, value: Any) -> Any:
    """Turn type, shape and bytes into an array.

    Raises:
        TypeError, ValueError: they are none, or do not belong together.
    """
    if expected is not np.ndarray:
        raise TypeError(f"{expected} cannot be received in a message")
    name, shape, data = msgspec.convert(value, _Packed)
    return np.frombuffer(data, np.dtype(name)).reshape(shape).copy()  # torch wants memory that it may write to
