"""What is tried: the recipe's engine, dtypes and devices around a small model of the same family."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from arl.config.recipe import Recipe
from arl.engine.backend import find_backend
from arl.errors import InputError
from arl.launch.base import Node
from arl.run.smoke.small_model import LAYERS, LOGIT_STD, make_small_model, small_config
from arl.run.smoke.smoke_sides import MEMORY_SHARE, engine_resources
from arl.run.smoke.smoke_trials import Trial, make_trial, precisions
from arl.run.smoke.smoke_types import Precision

FLOAT32 = Precision("float32", "float32")
CPU = Node("here", cores=2)
EIGHT_GPUS = Node("there", cores=64, devices=tuple("01234567"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small") / "model"
    make_small_model(small_config(None, on_gpus=False), directory)
    return directory


def trial_of(model: Path, recipe: Recipe | None, kind: str = "embedded", node: Node = CPU) -> Trial:
    backend = find_backend(kind)
    found = find_backend("embedded").probe(Recipe.model_validate(given()).engine)
    found = type(found)("it", "1", "here", backend.capabilities)
    return make_trial(recipe, kind, found, FLOAT32, model, node, python=None)


def given(**sections: Any) -> dict[str, Any]:
    return {"model": {"tiny": {}}, "data": {"task": "running_checksum"}, **sections}


def test_without_a_recipe_all_gpus_are_used_half_for_each_side(model: Path) -> None:
    recipe = trial_of(model, None, "sglang", EIGHT_GPUS).recipe
    assert (recipe.mode, recipe.engine.replicas, recipe.train.ranks) == ("disaggregated", 4, 4)


def test_one_gpu_is_shared_in_turns_and_takes_handles_but_no_broadcast(model: Path) -> None:
    trial = trial_of(model, None, "sglang", Node("there", 8, ("0",)))
    assert trial.recipe.mode == "collocated"
    assert trial.transports == ("file", "ipc")
    assert "NCCL joins no two processes on one GPU" in trial.refused["broadcast"]


def test_an_engine_leaves_most_of_a_gpu_to_the_processes_beside_it(model: Path) -> None:
    one_gpu = Node("there", 8, ("0",))
    recipe = Recipe.model_validate(given(mode="collocated", engine={"kind": "sglang"}))
    for trial in (trial_of(model, None, "sglang", one_gpu), trial_of(model, recipe, "sglang", one_gpu)):
        (engine,) = engine_resources(trial, one_gpu)
        assert engine.memory_share == MEMORY_SHARE


def test_on_mig_devices_there_is_one_process_a_side_and_no_broadcast(model: Path) -> None:
    trial = trial_of(model, None, "sglang", Node("there", 8, ("MIG-a", "MIG-b", "MIG-c", "MIG-d")))
    assert (trial.recipe.engine.replicas, trial.recipe.train.ranks) == (1, 1)
    assert "file" in trial.transports
    assert "NCCL joins no MIG devices" in trial.refused["broadcast"]


def test_a_transport_that_the_backend_cannot_take_is_refused_with_the_reason(model: Path) -> None:
    trial = trial_of(model, None)
    assert trial.transports == ("file", "broadcast")
    assert "takes weights by" in trial.refused["ipc"]


def test_a_recipes_engine_mode_temperature_and_processes_are_kept_and_its_schedule_is_not(model: Path) -> None:
    sections = given(
        mode="collocated",
        rollout={"temperature": 0.8, "staleness": 0},
        engine={"slots": 7, "replicas": 2, "environment": {"MY_FLAG": "1"}},
        train={"ranks": 2, "steps": 3, "minibatches": 2, "checkpointing": "full", "packing": "fixed"},
    )
    recipe = trial_of(model, Recipe.model_validate(sections)).recipe
    assert recipe.mode == "collocated"
    assert recipe.rollout.temperature == 0.8
    assert (recipe.engine.slots, recipe.engine.replicas, recipe.train.ranks) == (7, 2, 2)
    assert recipe.engine.environment == {"MY_FLAG": "1"}
    assert recipe.train.checkpointing == "full"
    assert (recipe.train.minibatches, recipe.train.packing) == (1, "balanced")
    assert recipe.sync.check


def test_a_recipe_for_more_gpus_than_there_are_is_refused(model: Path) -> None:
    recipe = Recipe.model_validate(given(engine={"replicas": 8}))
    with pytest.raises(InputError, match="which makes 9; there are 8 visible"):
        trial_of(model, recipe, node=EIGHT_GPUS)


def test_the_recipes_own_dtypes_come_first() -> None:
    sections = given(engine={"dtype": "bfloat16"}, train={"dtype": "float32"})
    own, *others = precisions(Recipe.model_validate(sections), on_gpus=False)
    assert own == Precision("bfloat16", "float32")
    assert FLOAT32 in others
    assert precisions(None, on_gpus=False)[0] == FLOAT32
    assert precisions(None, on_gpus=True)[0] == Precision("bfloat16", "bfloat16")


@pytest.mark.parametrize("on_gpus", [False, True])
@pytest.mark.parametrize("family", [Qwen2Config, Qwen3Config])
def test_the_small_model_is_of_the_recipes_family_with_logits_like_a_trained_ones(
    tmp_path: Path, family: type, on_gpus: bool
) -> None:
    config = family(
        vocab_size=3000,
        hidden_size=192,
        intermediate_size=256,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        architectures=[family.__name__.replace("Config", "ForCausalLM")],
    )
    config.save_pretrained(tmp_path / "theirs")
    recipe = Recipe.model_validate(given() | {"model": {"path": str(tmp_path / "theirs")}})
    make_small_model(small_config(recipe, on_gpus), tmp_path / "ours")
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert made.config.model_type == config.model_type
    assert made.config.num_hidden_layers == LAYERS
    assert made.config.tie_word_embeddings
    assert made.config.hidden_size == (192 if on_gpus else 128)
    token_ids = torch.from_numpy(np.random.default_rng(1).integers(0, made.config.vocab_size, (2, 100)))
    with torch.no_grad():
        std = float(made(token_ids).logits.std())
    assert std == pytest.approx(LOGIT_STD, rel=0.2)


def test_positions_matter_to_the_small_model(model: Path) -> None:
    """Else a comparison of logprobs could not show an engine with other positions."""
    made = AutoModelForCausalLM.from_pretrained(model)
    token_ids = torch.from_numpy(np.random.default_rng(1).integers(0, made.config.vocab_size, (1, 64)))
    with torch.no_grad():
        logits = made(token_ids).logits
        shuffled = token_ids[:, torch.cat([torch.randperm(63), torch.tensor([63])])]
        difference = (made(shuffled).logits - logits)[0, -1].std()
    assert float(difference) > 0.5
