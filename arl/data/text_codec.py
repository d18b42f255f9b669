"""Declare what the controller needs of a tokenizer, without importing one."""

from typing import Protocol

from arl.types import Problem


class TextCodec(Protocol):
    """Turn text into token ids and back."""

    stop_token_ids: tuple[int, ...]

    def encode_problem(self, problem: Problem) -> tuple[int, ...]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, token_ids: tuple[int, ...]) -> str: ...
