"""Everything that can be refused is refused here, before anything is started or written."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from arl.config.imports import import_function, import_seam
from arl.config.recipe import Recipe
from arl.data.problems import load_problems
from arl.engine.backend import probe_backend
from arl.errors import DataError, InputError, RecipeError
from arl.launch.launchers import make_launcher
from arl.launch.placement import Placement, place
from arl.metrics.trackers import check_trackers
from arl.models.model_files import stored_files
from arl.rollout.lag_table import load_lags
from arl.run.rewards import reward_name
from arl.run.starting_model import starting_codec, starting_limits, warmup_stages
from arl.sync.choose import choose_transport
from arl.tasks.base import EnvFunction, RewardFunction
from arl.tasks.registry import env_name, task_class
from arl.types import Problem, Transport


class Plan(Struct, frozen=True):
    """What preflight found out."""

    training: list[Problem]
    held_out: list[Problem]
    max_length: int  # of a trajectory, tokens
    placement: Placement
    transport: Transport
    lags: np.ndarray | None  # (steps, P) int32, versions: see arl.rollout.lag_table; None: staleness is bounded instead

    def sha256(self, steps: int) -> str:
        """Hash what files and tasks gave: the problems of both splits, and the lags of the first `steps` steps."""
        digest = hashlib.sha256(msgspec.msgpack.encode((self.training, self.held_out)))
        if self.lags is not None:
            digest.update(self.lags[:steps].tobytes())
        return digest.hexdigest()


def preflight(recipe: Recipe) -> Plan:
    """Refuse whatever can be known to fail, before anything is started or written.

    Raises:
        InputError: a function that does not import, problems or lags that cannot be read, devices that are not there,
            a model of an unsupported kind, or larger than memory.
    """
    if recipe.data.task is not None:
        task_class(recipe.data.task)
    warmup_stages(recipe)
    import_seam(reward_name(recipe), "reward.function", RewardFunction, "arl/tasks/running_checksum.py")
    import_seam(env_name(recipe), "rollout.env", EnvFunction, "arl.rollout.env:single_turn")
    if recipe.rollout.filter is not None:
        import_function(recipe.rollout.filter, "rollout.filter")
    check_trackers(recipe)
    lags = load_lags(recipe)
    training, held_out = load_problems(recipe.data, recipe.seed)
    if recipe.eval.problems and not held_out:
        raise DataError(
            "eval.problems: no problem is held out; hold out more (data.eval_fraction, or the task's options), or set "
            "eval.problems to 0"
        )
    max_length = check_lengths(recipe, training + held_out)
    launcher = make_launcher(recipe, recipe.run_directory / "logs")
    placement = place(recipe, launcher.nodes[0])
    transport = choose_transport(
        recipe,
        backend_transports=recipe.engine.capabilities.transports,
        one_process=recipe.world_traits.one_process,
        on_gpus=bool(placement.ranks[0].devices),
    )
    if transport == "file" and not launcher.shares_files:
        raise RecipeError(
            f"sync.transport file: launcher {recipe.launcher} starts processes that share no file system; use broadcast"
        )
    if recipe.model.path is not None:
        from arl.train.cost import check_memory  # and every model class of transformers, seconds of them

        if Path(recipe.model.path).is_dir():  # else it is downloaded when the run begins
            stored_files(recipe.model.path)
        check_memory(recipe.model.path, recipe.train, on_gpu=bool(placement.ranks[0].devices))
    probe_backend(recipe)
    return Plan(training, held_out[: recipe.eval.problems], max_length, placement, transport, lags)


def check_lengths(recipe: Recipe, problems: list[Problem]) -> int:
    """The longest trajectory that model and trainer hold, tokens.

    The longest that an env may make is refused as far as it is known: a prompt, and rollout.max_new_tokens, which
    bounds what the policy says in all turns together. What an env adds of its own, nobody can know before; its
    session refuses what would outgrow model or trainer, and the group fails.

    Raises:
        InputError: the longest prompt with a full response exceeds it, or has tokens that the model lacks.
    """
    codec, (vocab_size, context), capacity = starting_codec(recipe), starting_limits(recipe), recipe.train.capacity
    prompts = [codec.encode_problem(p) for p in sorted(problems, key=lambda p: len(str(p.prompt)))[-16:]]
    prompt, largest = max(map(len, prompts)), max(map(max, [*prompts, codec.stop_token_ids]))
    if largest >= vocab_size:
        raise InputError(
            f"model.path {recipe.model.path}: its tokenizer makes id {largest}, and the model's ids run from 0 to "
            f"{vocab_size - 1}: give the tokenizer that belongs to the model"
        )
    sampled = recipe.rollout.max_new_tokens
    what = f"a prompt of {prompt} tokens and rollout.max_new_tokens {sampled}, {prompt + sampled} in all"
    if prompt + sampled > context:
        raise InputError(f"{what}, exceed the model's context of {context}: lower rollout.max_new_tokens")
    if prompt + sampled > capacity:
        raise InputError(
            f"train.capacity {capacity}: a micro-batch must hold the longest trajectory, {what}: raise train.capacity "
            f"to {prompt + sampled} or more, or lower rollout.max_new_tokens"
        )
    return min(capacity, context)
