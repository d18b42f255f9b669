"""Declare what the controller needs of a tokenizer, without importing one."""

from collections.abc import Sequence
from typing import Protocol

from arl.types import Problem


class TextCodec(Protocol):
    """Turn text into token ids and back."""

    stop_token_ids: tuple[int, ...]

    def encode_problem(self, problem: Problem) -> tuple[int, ...]:
        """Return the ids of a whole prompt, ready for the answer."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of text that continues a prompt, without special tokens."""

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Return the text without the tokens that end or frame a turn."""

    def decode_all(self, sequences: Sequence[Sequence[int]], special_tokens: bool = False) -> list[str]:
        """Return the text of each sequence, all of it if `special_tokens`. Threads may call it too."""
