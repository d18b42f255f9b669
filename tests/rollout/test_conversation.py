"""A conversation extends the record by what is new, and forks it where history changes."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Coroutine
from typing import Any, cast

import numpy as np
import pytest

from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError
from arl.rollout.conversation import Conversation
from arl.rollout.env import UNGRADED, Session
from arl.types import GenerateRequest, Increment, Problem, SamplingParams
from tests.data.chat_tokenizers import OTHER_HISTORY, chat_tokenizer
from tests.data.model_templates import family_tokenizer

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]


class Script:
    """An engine that says given texts, and ends each with the turn's end; remembers what it was asked."""

    def __init__(self, codec: HuggingFaceCodec, texts: list[str]) -> None:
        self._codec = codec
        self._texts = iter(texts)
        self.asked: list[GenerateRequest] = []
        self.said: list[tuple[int, ...]] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine."""
        self.asked.append(request)
        ids = (*self._codec.encode(next(self._texts)), self._codec.stop_token_ids[0])[: request.sampling.max_new_tokens]
        self.said.append(ids)
        await asyncio.sleep(0)
        reason = "stop" if ids[-1] == self._codec.stop_token_ids[0] else "length"
        yield Increment(ids, (-1.0,) * len(ids), (0,) * len(ids), cast(Any, reason))


def opened(codec: HuggingFaceCodec, texts: list[str], budget: int = 10_000) -> tuple[Session, Script]:
    engine = Script(codec, texts)
    sampling = SamplingParams(budget, stop_token_ids=codec.stop_token_ids, seed=5)
    prompt = codec.encode_problem(Problem("Hi"))
    return Session(cast(Any, engine), codec, sampling, prompt, 10_000, "g0.0", "g0"), engine


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_turns_are_appended_and_a_question_that_is_asked_twice_forks() -> None:
    codec = HuggingFaceCodec(family_tokenizer("qwen2_5"))
    session, engine = opened(codec, ["one  ", "two", "three", "other"])

    async def talk() -> None:
        conversation = Conversation(session)
        first = await conversation.reply([user("Hi")])
        history = [user("Hi"), {"role": "assistant", "content": first.message["content"].strip()}, user("more")]
        await conversation.reply(history)
        await asyncio.gather(conversation.reply([user("Hi")]), conversation.reply(history))

    run(talk())
    first, second, again, other = engine.asked
    assert first.input_ids == codec.encode_problem(Problem("Hi"))
    end = codec.encode("\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")
    assert second.input_ids == (*first.input_ids, *engine.said[0], *end)  # the space that was sampled included
    assert again.input_ids == first.input_ids
    assert other.input_ids == second.input_ids
    assert len({request.sampling.seed for request in (first, again, other)}) == 3  # so that they say other things
    assert second.sampling.seed == first.sampling.seed
    branches = session.trajectories(UNGRADED)
    assert [branch.branch for branch in branches] == [0, 1, 2]
    assert [branch.num_sampled for branch in branches] == [len(engine.said[0]) + len(engine.said[1]), 6, 6]
