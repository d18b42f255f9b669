"""Pack the numbers of a trajectory's tokens so that a page carries them in few bytes."""

import base64
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from msgspec import Struct

MOST_TOKENS = 8_000  # of a trajectory; later ones are left out of its colored tokens
COLUMNS = ("behavior_logprobs", "proximal_logprobs", "current_logprobs", "advantages")


class PackedTokens(Struct, frozen=True, kw_only=True, rename="camel"):
    """Hold the tokens after a prompt: arrays as base64 of their little-endian bytes, repeated values as run lengths."""

    ids: str  # uint32
    versions: list[list[int]]  # [version, number of tokens] one after the other; version −1 was not sampled
    mask: list[list[int]]  # [0 or 1, number of tokens]
    behavior_logprobs: str | None  # float32; NaN: none
    proximal_logprobs: str | None
    current_logprobs: str | None
    advantages: str | None  # None: the trajectory has one advantage, or none
    num_tokens: int  # that are here


def pack_tokens(row: Mapping[str, Any]) -> PackedTokens:
    """Pack the tokens of a row of a trajectory file."""
    start = row["prompt_length"]
    own = slice(start, start + MOST_TOKENS)
    ids = row["token_ids"][own]
    marks = [int(marked) for marked in row["loss_mask"][own]]
    arrays = {name: pack_floats(row[name], own) for name in COLUMNS}
    return PackedTokens(
        ids=_base64(np.asarray(ids, "<u4")),
        versions=run_lengths(row["policy_versions"][own]),
        mask=run_lengths(marks),
        num_tokens=len(ids),
        **arrays,
    )


def pack_floats(values: Sequence[float | None] | None, part: slice) -> str | None:
    """Pack a part of a column, in which null is NaN; None if the whole column is null."""
    if values is None:
        return None
    return _base64(np.asarray(values[part], "<f4"))


def run_lengths(values: Sequence[int]) -> list[list[int]]:
    """List each value with how often it follows itself.

    >>> run_lengths([3, 3, 4])
    [[3, 2], [4, 1]]
    """
    return [[value, len(list(same))] for value, same in groupby(values)]


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
