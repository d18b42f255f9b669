"""Provide episodes of a tiny model with a chat template, whose engine runs in this process and keeps a log."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from safetensors.torch import load_file, save_file

from arl.config.recipe import Rollout, TinyModel
from arl.data.tokenizer import HuggingFaceCodec, load_codec
from arl.engine.base import Engine
from arl.engine.embedded.batching import EmbeddedEngine
from arl.models.load import load_model
from arl.models.tiny import make_tiny_model
from arl.rollout.env import Env
from arl.rollout.env_watch import EnvWatch
from arl.rollout.episodes import Episodes
from arl.types import GenerateRequest, Increment, Problem, Trajectory, Turn
from tests.fakes import NullRewards

CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
TEMPLATE = """\
{%- if tools %}[tools]{{ tools[0].function.name }} by <tool_call>{{ eos_token }}{% endif %}
{%- for message in messages %}[{{ message.role }}]{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", "arguments": \
{{- call.function.arguments | tojson }}}</tool_call>{% endfor %}{{ eos_token }}{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
SHAPE = TinyModel(hidden_size=32, layers=1, heads=2, intermediate_size=64, context=512)
BUDGET = 400
PROBLEM = Problem("p", answer="a")


def make_chat_model(directory: Path, seed: int) -> Path:
    """Write a model with random weights, enlarged so that the context matters to what is sampled."""
    make_tiny_model(SHAPE, CHARACTERS, seed, directory, chat_template=TEMPLATE)
    file = directory / "model.safetensors"
    save_file({k: v * 4 if v.ndim == 2 else v for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two models of one shape."""
    first, second = (make_chat_model(tmp_path_factory.mktemp("chat"), seed) for seed in (0, 1))
    return first, second


@dataclass
class Sampled:
    """Hold one request of the log: its context, and what was sampled of it."""

    context: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass
class LoggedEngine:
    """Pass requests to an engine, and remember what it samples."""

    inner: Engine
    log: list[Sampled] = field(default_factory=list)
    num_open: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # nothing is open
    began: asyncio.Event = field(default_factory=asyncio.Event)  # an answer has its first tokens

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine."""
        entry = Sampled(request.input_ids)
        self.log.append(entry)
        self.num_open += 1
        self.idle.clear()
        try:
            async with aclosing(self.inner.generate(request)) as increments:  # type: ignore[type-var]
                async for increment in increments:
                    entry.token_ids += increment.token_ids
                    entry.logprobs += increment.logprobs
                    entry.versions += increment.policy_versions
                    self.began.set()
                    yield increment
        finally:
            self.num_open -= 1
            if not self.num_open:
                self.idle.set()


def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)


class Actor:
    """An engine that says the given texts, one a request."""

    def __init__(self, codec: HuggingFaceCodec, *texts: str) -> None:
        self._codec = codec
        self._texts = list(texts)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine."""
        ids = (*self._codec.encode(self._texts.pop(0)), self._codec.stop_token_ids[0])
        yield Increment(ids, (-1.0,) * len(ids), (0,) * len(ids), "stop")


class World:
    """Run episodes against a logged engine.

    Args:
        engine: the real one.
        codec: of its model.
    """

    def __init__(self, engine: Engine, codec: HuggingFaceCodec) -> None:
        self.inner = engine
        self.engine = LoggedEngine(engine)
        self.codec = codec

    def episodes(self, env: Env, group_size: int = 1, **rollout: Any) -> Episodes:
        """Return what runs groups by `env`."""
        settings = Rollout(group_size=group_size, **{"max_new_tokens": BUDGET, **rollout})
        watch = EnvWatch("tests:env", silence=60.0)
        engine: Any = self.engine
        return Episodes(engine, self.codec, NullRewards(), env, watch, settings, seed=0, max_length=SHAPE.context)

    async def run(
        self, env: Env, *, name: str = "g0", journals: Sequence[tuple[Turn, ...]] = (), **options: Any
    ) -> tuple[Trajectory, ...]:
        """Run one group, and return its trajectories."""
        episodes = self.episodes(env, **options)
        self.sessions = episodes.open(name, PROBLEM, journals)
        return await episodes.run(PROBLEM, self.sessions)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return all that the tokens say."""
        return self.codec.decode_all([token_ids], special_tokens=True)[0]


def trained_turns(trajectories: Sequence[Trajectory]) -> list[tuple[Any, ...]]:
    """Return each run of trained tokens as (context, tokens, versions), sorted."""
    turns = []
    for trajectory in trajectories:
        mask = [False, *trajectory.loss_mask.tolist(), False]
        starts = [i for i in range(len(mask) - 1) if mask[i + 1] and not mask[i]]
        for start in starts:
            end = next(i for i in range(start, len(mask)) if not mask[i + 1])
            ids = trajectory.token_ids.tolist()
            turns.append((ids[:start], ids[start:end], trajectory.policy_versions[start:end].tolist()))
    return sorted(turns)


def logged_turns(log: Sequence[Sampled]) -> list[tuple[Any, ...]]:
    """Return the same of the engine's log."""
    return sorted((list(entry.context), entry.token_ids, entry.versions) for entry in log if entry.token_ids)


OpenWorld = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def in_world(models: tuple[Path, Path]) -> OpenWorld:
    """Return what runs a scenario in a world of the first model; a hang is a failure."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[World]:
        engine = EmbeddedEngine(
            load_model(str(models[0]), "float32"), slots=16, kv_policy="recompute", stream_interval=4
        )
        async with engine:
            yield World(engine, load_codec(str(models[0])))

    def run(scenario: Callable[[World], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), opened() as world:
                await scenario(world)

        asyncio.run(main())

    return run
