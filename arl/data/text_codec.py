"""The tokenizer seam, without a tokenizer: torch-free."""

from typing import Protocol

from arl.types import Problem


class TextCodec(Protocol):
    """What rollout needs of a tokenizer."""

    stop_token_ids: tuple[int, ...]

    def encode_problem(self, problem: Problem) -> tuple[int, ...]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, token_ids: tuple[int, ...]) -> str: ...
