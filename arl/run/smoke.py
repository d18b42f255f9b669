"""Train a small model for two steps with each engine, dtype and transport that this machine has: `arl doctor --smoke`.

    small model ─► recipe of each combination ─► arl.run.train ─► trajectories ─► engine's logprobs beside the trainer's

Every loaded weight is compared (sync.check). Tokens of step 2 are sampled with weights that the transport has brought.
A combination that fails prints its error, and the others go on.
"""

import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pydantic import ValidationError
from rich.console import Console

from arl.config.engine_section import EngineConfig
from arl.config.recipe import Recipe, TinyModel
from arl.engine.backend import BUILT_IN, find_backend
from arl.errors import InputError, RunError
from arl.launch.devices import visible_devices
from arl.metrics.console import ConsoleDisplay
from arl.metrics.trajectory_files import read_trajectories, trajectory_files
from arl.run.train import train
from arl.types import Problem, Response

# The largest RMS of δ = trainer − engine that is rounding, nats. Measured on a CPU with logits of LOGIT_STD: float32
# 3e-6; bfloat16 5e-3 (embedded), 5e-2 (SGLang 0.5.20, which rounds logits elsewhere). The rest is derived from these.
LIMITS = {"float32": 1e-4, "float16": 1.25e-2, "bfloat16": 1e-1}
GPU_FLOAT32 = LIMITS["float16"]  # TF32's mantissa has the 10 bits of float16's

SHAPE = TinyModel(hidden_size=256, layers=2, heads=4, intermediate_size=512)
LOGIT_STD = 4.0  # as of a trained model; random weights would have nearly equal logprobs, and no mistake would show


class Combination(Struct, frozen=True):
    """Hold what one small run tries."""

    engine: EngineConfig
    checks_weights: bool
    dtype: str
    mode: str
    transport: str

    def __str__(self) -> str:
        return f"{self.engine.kind}-{self.dtype}-{self.transport}"


def smoke_test(given: EngineConfig | None, python: str | None, note: Callable[[str], None]) -> bool:
    """Run every combination of `given`, a recipe's engine, or of every built-in one; return whether all are good.

    `python` is the interpreter of backends that have one of their own. On a CPU these start for minutes, and are tried
    only if they are asked for.
    """
    tried = list(combinations(given, python, note))
    directory = Path(tempfile.mkdtemp(prefix="arl-smoke-"))
    make_small_model(directory / "model")
    is_good = True
    for one in tried:
        limit = GPU_FLOAT32 if one.dtype == "float32" and visible_devices() else LIMITS[one.dtype]
        try:
            recipe = make_recipe(one, directory)
            train(recipe, ConsoleDisplay(Console(file=io.StringIO())))
            is_same, words = compare(*read_logprobs(recipe.run_directory), limit)
        except (InputError, RunError, ValidationError) as error:
            is_same = False
            words = f"failed: {error}"
        is_good = is_good and is_same
        note(f"{one}: {words}")
    if is_good:
        shutil.rmtree(directory)
    else:
        note(f"runs and their logs are in {directory}")
    return is_good


def combinations(given: EngineConfig | None, python: str | None, note: Callable[[str], None]) -> Iterator[Combination]:
    """Yield what this machine has; `note` is told about engines that are not tried."""
    num_gpus = len(visible_devices())
    is_asked_for = given is not None or python is not None
    # ipc needs a common GPU, and NCCL one for each side.
    ways = [("collocated" if num_gpus == 1 else "disaggregated", "file")]
    ways += [] if num_gpus == 1 else [("disaggregated", "broadcast")]
    ways += [("collocated", "ipc")] if num_gpus else []
    for config in [given] if given is not None else [EngineConfig(kind=kind) for kind in BUILT_IN]:
        backend = find_backend(config.kind)
        is_elsewhere = backend.capabilities.own_interpreter
        engine = config.model_copy(update={"python": python or config.python}) if is_elsewhere else config
        try:
            if is_elsewhere and not num_gpus and not is_asked_for:
                raise InputError("on a CPU it is tried with --python, or with a RECIPE")
            found = backend.probe(engine).capabilities
        except InputError as error:
            if is_asked_for:
                raise
            note(f"engine {engine.kind} is not tried: {error}")
            continue
        for dtype in ("bfloat16", "float16", "float32") if num_gpus else ("float32", "bfloat16"):
            for mode, transport in ways:
                if transport in found.transports:
                    yield Combination(engine, found.checksums, dtype, mode, transport)


def make_recipe(one: Combination, directory: Path) -> Recipe:
    """Make the recipe of one small run."""
    engine: dict[str, Any] = one.engine.model_dump(mode="json")
    engine |= {"dtype": one.dtype, "replicas": 1, "tensor_parallel": 1, "slots": 32, "max_restarts": 0}
    return Recipe.model_validate(
        {
            "name": str(one),
            "mode": one.mode,
            "model": {"path": str(directory / "model")},
            "data": {"task": "running_checksum", "options": {"size": 2000}},
            "rollout": {
                "problems_per_step": 8,
                "group_size": 4,
                "max_new_tokens": 48,
                "temperature": 0.9,  # one that is forgotten shows
                "staleness": 0,  # so both sides have the same weights
            },
            "objective": {"kind": "decoupled_ppo"},  # its proximal logprobs are the trainer's before the step
            "reward": {"function": f"{__name__}:reward_length", "workers": 1},
            "engine": engine,
            "train": {"steps": 2, "minibatches": 1, "dtype": one.dtype, "learning_rate": 1e-3},
            "sync": {"transport": one.transport, "check": one.checks_weights},
            "eval": {"problems": 0},
            "output": {"directory": str(directory), "trajectories": True},
        }
    )


def reward_length(problem: Problem, response: Response) -> float:
    """Reward each response with another number, so that every group is trained."""
    del problem
    return float(sum(map(ord, response.text)) % 97)


def make_small_model(directory: Path) -> None:
    """Write random weights whose logits have the standard deviation LOGIT_STD, and their tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    from arl.models.tiny import make_tiny_model
    from arl.tasks.running_checksum import CHARACTERS

    make_tiny_model(SHAPE, CHARACTERS, 0, directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        std = float(model(torch.randint(0, model.config.vocab_size, (4, 64))).logits.std())
        model.model.norm.weight.mul_(LOGIT_STD / std)  # on which logits depend linearly
    model.save_pretrained(directory)


def read_logprobs(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the engine's and the trainer's logprobs of every trained token, (T,) float64."""
    columns = ["loss_mask", "behavior_logprobs", "proximal_logprobs"]
    table = pa.concat_tables([read_trajectories(file, columns) for file in trajectory_files(run)])
    table = table.filter(table["proximal_logprobs"].is_valid())
    is_trained, *sides = (table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False) for name in columns)
    engine, trainer = (side[is_trained].astype(np.float64) for side in sides)
    return engine, trainer


def compare(engine: np.ndarray, trainer: np.ndarray, limit: float) -> tuple[bool, str]:
    """Compare logprobs of the same tokens, each (T,); return whether they differ by rounding, and what to say of it."""
    if not (len(engine) and np.isfinite(engine).all() and np.isfinite(trainer).all()):
        return False, "wrong: no token, or a logprob that is not finite: overflow in the dtype, or damaged weights"
    rms = float(np.sqrt(np.mean((trainer - engine) ** 2)))
    measured = f"{len(engine)} tokens, RMS {rms:.1e} of {limit:.1e}"
    if rms <= limit:
        return True, f"ok; {measured}"
    return False, (
        "wrong: look at the temperature, the dtype of the head, attention with its positions and its cache, and at "
        f"weights that did not arrive; {measured}"
    )
