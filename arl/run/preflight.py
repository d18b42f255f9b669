"""Everything that can be refused is refused here, before anything is started or written."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from arl.config.imports import import_function
from arl.config.recipe import Recipe
from arl.data.model_limits import model_config
from arl.data.problems import load_problems
from arl.engine.sglang.server_command import look_at
from arl.errors import DataError, InputError
from arl.launch.placement import Placement, place, visible_cores, visible_gpus
from arl.metrics.trackers import check_tracking
from arl.models.model_files import stored_files
from arl.rollout.lag_table import load_lags
from arl.run.rewards import reward_name
from arl.run.starting_model import starting_codec, starting_limits
from arl.sync.choose import choose_transport
from arl.train.algorithms.trial import try_algorithms
from arl.types import Problem, Transport


class Plan(Struct, frozen=True):
    """What preflight found out."""

    training: list[Problem]
    held_out: list[Problem]
    max_length: int  # of a trajectory, tokens
    placement: Placement
    transport: Transport
    lags: np.ndarray | None  # (steps, P) int32, versions: see arl.rollout.lag_table; None: staleness is bounded instead

    def sha256(self) -> str:
        """Of what files and tasks gave: the problems of both sides, and lags."""
        digest = hashlib.sha256(msgspec.msgpack.encode((self.training, self.held_out)))
        digest.update(b"" if self.lags is None else self.lags.tobytes())
        return digest.hexdigest()


def preflight(recipe: Recipe) -> Plan:
    """Refuse whatever can be known to fail, before anything is started or written.

    Raises:
        InputError: a function that does not import, problems or lags that cannot be read, devices that are not there,
            a model of an unsupported kind, or larger than memory.
    """
    import_function(reward_name(recipe), "reward.function")
    import_function(recipe.rollout.env, "rollout.env")
    if recipe.rollout.filter is not None:
        import_function(recipe.rollout.filter, "rollout.filter")
    try_algorithms(recipe)
    check_tracking(recipe)
    lags = load_lags(recipe)
    training, held_out = load_problems(recipe.data, recipe.seed)
    if recipe.eval.problems and not held_out:
        raise DataError("eval.problems: no problem is held out; raise data.eval_fraction or set eval.problems to 0")
    max_length = check_lengths(recipe, training + held_out)
    placement = place(recipe, visible_cores(), visible_gpus())
    transport = choose_transport(recipe, placement)
    if recipe.model.path is not None:
        from arl.train.cost import check_memory  # and every model class of transformers, seconds of them

        if Path(recipe.model.path).is_dir():  # else it is downloaded when the run begins
            stored_files(recipe.model.path)
        check_memory(recipe.model.path, recipe.train, on_gpu=placement.ranks[0].gpu is not None)
    if recipe.engine.kind == "sglang":
        check_sglang(recipe)
    return Plan(training, held_out[: recipe.eval.problems], max_length, placement, transport, lags)


def check_sglang(recipe: Recipe) -> None:
    """Raises InputError: no SGLang where the recipe says it is, or one that cannot do what is asked of it."""
    found = look_at(recipe.engine.python)
    if recipe.engine.kv_policy == "keep" and not found.tells_spans:
        raise InputError(
            f"engine.kv_policy keep: SGLang {found.version} in {found.path} tells only the last version of a request, "
            "not which one sampled each token; use recompute, or SGLang 0.5.18 or newer"
        )
    if recipe.sync.check and not found.tells_checksums:
        raise InputError(
            f"sync.check true: SGLang {found.version} in {found.path} cannot be made to tell checksums of its weights; "
            "leave it out, or use SGLang 0.5.20 or newer"
        )
    if recipe.model.path is not None:
        _check_model(recipe.model.path, recipe.sync.check)


def _check_model(path: str, compared: bool) -> None:
    """Refuse what SGLang would load without a word, and not as it was published."""
    config = model_config(path)
    if getattr(config, "mlp_bias", False):
        raise InputError(
            f"model.path {path}: its MLPs have biases (mlp_bias), which SGLang's Llama leaves out, silently; choose "
            "another model, or use engine.kind embedded"
        )
    if compared and config.model_type == "gemma":
        raise InputError(
            f"sync.check true: SGLang adds one to the norms of {path} as it loads them, and rounds: what was published "
            "cannot be told from what it holds; leave it out for Gemma, or use engine.kind embedded"
        )


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
