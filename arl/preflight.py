"""Everything that can be refused is refused here, before anything is started or written."""

import hashlib

import msgspec
import numpy as np
from msgspec import Struct

from arl.data.problems import load_problems
from arl.errors import DataError, InputError
from arl.imports import import_function
from arl.lags import load_lags
from arl.launch.placement import Placement, place, visible_cores, visible_gpus
from arl.launch.sglang import look_at
from arl.metrics.trackers import check_tracking
from arl.recipe import Recipe
from arl.system import reward_name
from arl.types import Problem
from arl.warmup import starting_codec, starting_limits


class Plan(Struct, frozen=True):
    """What preflight found out."""

    training: list[Problem]
    held_out: list[Problem]
    max_length: int  # of a trajectory, tokens
    placement: Placement
    lags: np.ndarray | None  # (steps, P) int32, versions: see arl.lags; None: staleness is bounded instead

    def sha256(self) -> str:
        """Of what files and tasks gave: the problems of both sides, and lags."""
        digest = hashlib.sha256(msgspec.msgpack.encode((self.training, self.held_out)))
        digest.update(b"" if self.lags is None else self.lags.tobytes())
        return digest.hexdigest()


def preflight(recipe: Recipe) -> Plan:
    """Refuse whatever can be known to fail, before anything is started or written.

    Raises:
        InputError: a function that does not import, problems or lags that cannot be read, devices that are not there.
    """
    import_function(reward_name(recipe), "reward.function")
    import_function(recipe.rollout.env, "rollout.env")
    if recipe.rollout.filter is not None:
        import_function(recipe.rollout.filter, "rollout.filter")
    check_tracking(recipe)
    lags = load_lags(recipe)
    training, held_out = load_problems(recipe.data, recipe.seed)
    if recipe.eval.problems and not held_out:
        raise DataError("eval.problems: no problem is held out; raise data.eval_fraction or set eval.problems to 0")
    max_length = check_lengths(recipe, training + held_out)
    placement = place(recipe, visible_cores(), visible_gpus())
    if recipe.engine.kind == "sglang":
        check_sglang(recipe)
    return Plan(training, held_out[: recipe.eval.problems], max_length, placement, lags)


def check_sglang(recipe: Recipe) -> None:
    """Raises InputError: no SGLang where the recipe says it is, or one that is too old for what is asked of it."""
    found = look_at(recipe.engine.python)
    if recipe.engine.kv_policy == "keep" and not found.tells_spans:
        raise InputError(
            f"engine.kv_policy keep: SGLang {found.version} in {found.path} tells only the last version of a request, "
            "not which one sampled each token; use recompute, or SGLang 0.5.18 or newer"
        )


def check_lengths(recipe: Recipe, problems: list[Problem]) -> int:
    """The longest trajectory that model and trainer hold, tokens.

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
    tokens = prompt + recipe.rollout.max_new_tokens
    if tokens > capacity:
        raise InputError(f"train.capacity {capacity}: a trajectory may have {tokens} tokens; raise it")
    if tokens > context:
        raise InputError(
            f"rollout.max_new_tokens {recipe.rollout.max_new_tokens} after a prompt of {prompt} tokens exceeds the "
            f"model's context of {context}: lower it"
        )
    return min(capacity, context)
