"""Record everything that makes two scores comparable, and say in what two records differ.

Suite, engine, tokenizer ─► Protocol ─► fingerprint     scores of one protocol share a table; others never do
"""

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

import arl
from arl.config.imports import import_function
from arl.data.tokenizer import HuggingFaceCodec
from arl.engine.backend import Installation
from arl.run.evaluation.suite import Suite


class Protocol(Struct, frozen=True, kw_only=True):
    """Say how one suite is evaluated. Two scores may be compared if their protocols are equal."""

    suite: str
    split: str = "evaluation"
    problems: int
    problems_sha256: str  # of prompts, answers and metadata, in their order
    samples: int
    temperature: float  # 0: greedy
    top_p: float
    top_k: int | None
    max_new_tokens: int
    system: str  # prompt
    suffix: str  # of every question
    chat_template_sha256: str | None  # of the tokenizer's template; None: prompts are plain text
    stop: dict[str, Any]  # strings and ids that end a response, beside the model's own
    env: str
    grader: str
    grader_version: str
    engine: str  # its kind
    engine_version: str
    dtype: str  # of weights and cache in the engine
    arl: str  # version
    seed: int

    @property
    def fingerprint(self) -> str:
        """Return a short hash, which is equal for equal protocols alone."""
        content = msgspec.json.encode(msgspec.to_builtins(self), order="sorted")
        return hashlib.sha256(content).hexdigest()[:12]

    @property
    def sampling(self) -> str:
        """Describe the sampling in a line."""
        if self.temperature == 0:
            return f"greedy, at most {self.max_new_tokens} tokens"
        parts = [f"{self.samples} x {self.problems} problems", f"temperature {self.temperature:g}"]
        if self.top_p < 1:
            parts.append(f"top-p {self.top_p:g}")
        if self.top_k is not None:
            parts.append(f"top-k {self.top_k}")
        return ", ".join([*parts, f"at most {self.max_new_tokens} tokens"])


def protocol_of(suite: Suite, installed: Installation, codec: HuggingFaceCodec) -> Protocol:
    """Record how `suite` is about to be evaluated.

    Args:
        installed: the engine that generates.
        codec: makes the suite's prompts.
    """
    recipe = suite.recipe
    sampling = suite.sampling
    template = codec.chat_template if codec.prompts.uses_template else None
    return Protocol(
        suite=suite.name,
        problems=len(suite.problems),
        problems_sha256=_sha256(msgspec.msgpack.encode(suite.problems)),
        samples=sampling.samples,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=suite.max_new_tokens,
        system=recipe.data.system,
        suffix=recipe.data.suffix,
        chat_template_sha256=None if template is None else _sha256(template.encode()),
        stop=recipe.rollout.model_dump(mode="json", include={"stop", "stop_token_ids"}),
        env=suite.env,
        grader=suite.reward,
        grader_version=_version_of(suite.reward),
        engine=recipe.engine.kind,
        engine_version=installed.version,
        dtype=recipe.engine.dtype,
        arl=arl.__version__,
        seed=recipe.seed,
    )


def differing_fields(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (field, its value in one, in the other) for every field in which two records differ."""
    for field in sorted(one.keys() | other.keys()):
        a = one.get(field)
        b = other.get(field)
        if a != b:
            yield field, a, b


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _version_of(grader: str) -> str:
    """Return the version of arl for its own graders, and a hash of the source of a user's module."""
    module = inspect.getmodule(import_function(grader, "reward.function"))
    name = grader.partition(":")[0] if module is None else module.__name__
    if name.partition(".")[0] == "arl":
        return f"arl {arl.__version__}"
    source = inspect.getsource(sys.modules[name])
    return f"sha256 {_sha256(source.encode())[:12]}"
