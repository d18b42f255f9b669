"""A recipe that names a publication has its settings, and a header with its figures.

header names AReaL, its paper or its rebuttal ─► a row of ROWS, or the test fails ─► every value, every figure
"""

import re
from pathlib import Path
from typing import Any

import pytest

from arl.config.recipe import Recipe
from arl.config.recipe_file import is_sweep_file, leaves, load_recipe, read_with_places
from arl.sweep.request import read_request, write_override
from arl.sweep.sweep_arms import combine
from tests.forks import ROOT

NAMES_A_PUBLICATION = re.compile(r"2505\.24298|areal|paper|rebuttal", re.IGNORECASE)
RECIPES = ROOT / "recipes"

# arXiv 2505.24298, hyper-parameters: ε .2, reward ±5, Adam 2e-5 constant, fp16, temperature 1, prompts of 1,024 tokens.
# A warm-up of .001 is one update of 250 · 4.
PAPER = {
    "rollout.group_size": 16,
    "rollout.temperature": 1.0,
    "data.max_prompt_tokens": 1024,
    "reward.bias": -0.5,
    "reward.scale": 10.0,
    "objective.kind": "decoupled_ppo",
    "objective.proximal": "recompute",
    "objective.weight.mode": "mask",  # and the cap of 5: AReaL's loss, areal/utils/functional.py
    "objective.weight.high": 5.0,
    "objective.clip_low": 0.2,
    "objective.clip_high": 0.2,
    "objective.entropy_coefficient": 0.0,
    "train.steps": 250,
    "train.minibatches": 4,
    "train.learning_rate": 2e-5,
    "train.ramp_steps": 0,  # a warm-up of .001 is one update, which arl gives the whole rate
    "train.decay_to": 1.0,
    "train.betas": (0.9, 0.95),
    "train.eps": 1e-5,
    "train.weight_decay": 0.05,
    "train.decayed": "all",
    "train.clip_norm": 1.0,
    "train.dtype": "float16",
    "engine.dtype": "float16",
}
MATH = PAPER | {  # the same, and its runs on mathematics: η 8, generation of 27,648 tokens
    "model.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "rollout.problems_per_step": 512,
    "rollout.max_new_tokens": 27_648,
    "rollout.staleness": 8,
    "advantage.kind": "batch_norm",
}
CODE = PAPER | {  # its runs on code: η 4
    "data.task": "deepcoder",
    "eval.suites": ("livecodebench_v5",),
    "rollout.problems_per_step": 512,
    "rollout.max_new_tokens": 27_648,
    "rollout.staleness": 4,
    "advantage.kind": "batch_norm",
}
CODE_14B = CODE | {"model.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"}
CODE_32B = CODE | {"model.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"}
REBUTTAL = PAPER | {  # its table of 8 GPUs: 64 × 16 at 8k
    "model.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "rollout.problems_per_step": 64,
    "rollout.max_new_tokens": 8192,
    "advantage.kind": "grpo",
}
# inclusionAI/AReaL, examples/math/gsm8k_grpo.yaml; 10 epochs are 290 steps, and .001 of them is no warm-up
GSM8K = {
    "model.path": "Qwen/Qwen2.5-1.5B-Instruct",
    "data.max_prompt_tokens": 1024,
    "rollout.problems_per_step": 256,
    "rollout.group_size": 4,
    "rollout.staleness": 2,
    "rollout.max_new_tokens": 1024,
    "rollout.temperature": 1.0,
    "reward.bias": -0.5,
    "reward.scale": 10.0,
    "objective.kind": "decoupled_ppo",
    "objective.proximal": "recompute",
    "objective.weight.mode": "mask",
    "objective.weight.high": 5.0,
    "objective.clip_low": 0.4,
    "objective.clip_high": 0.4,
    "advantage.kind": "grpo",
    "train.steps": 290,
    "train.minibatches": 1,
    "train.learning_rate": 1.7e-5,
    "train.ramp_steps": 0,
    "train.decay_to": 1.0,
    "train.betas": (0.9, 0.999),
    "train.eps": 1e-8,
    "train.weight_decay": 0.017,
    "train.clip_norm": 1.0,
    "eval.temperature": 0.6,  # examples/math/gsm8k_rl.py
    "eval.samples": 4,
}
TURNS = {  # twice the problems in twice the minibatches, half of the steps: the same updates
    "rollout.problems_per_step": 512,
    "rollout.staleness": 1,
    "train.minibatches": 2,
    "train.steps": 145,
}
VIRTUAL = {"rollout.problems_per_step": 64, "train.minibatches": 4}  # of the rebuttal's table; it is about speed alone

# settings, and what the header says of the published figures
ROWS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "cluster/1.5b-16x8": (MATH, ["AIME24 42.2 in 14.8 hours", "41.0 at η 8", "42.2 at η 4", "H800"]),
    "cluster/1.5b-2x8": (REBUTTAL | {"rollout.staleness": 4}, ["nothing was published"]),
    "code/14b": (CODE_14B, ["21.9 hours on H800", "synchronous system took 48.8"]),
    "code/32b": (CODE_32B, ["31.1 hours on H800", "synchronous system took 51.1"]),
    "gsm8k/8gpu": (GSM8K, [".7957", "35 minutes", "8 H800"]),
    "gsm8k/8gpu-6-2": (GSM8K, []),
    "gsm8k/8gpu-collocated": (GSM8K | TURNS, []),
    "gsm8k/r1-distill-1.5b": (REBUTTAL | {"rollout.staleness": 4}, ["AIME24 31.7 to 34.1", "49,000", "no hours"]),
    "study/rebuttal-staleness": (REBUTTAL, ["27.1, 47.8, 47.8, 49.0, 51.5 and 52.0", "31.7 to 34.1", "no hours"]),
    "study/eight-gpus-virtual": (VIRTUAL, []),
    "study/speed": (VIRTUAL, []),
}


def header(file: Path) -> str:
    lines = [line for line in file.read_text().splitlines() if line.startswith("#")]
    return " ".join(line.removeprefix("#").strip() for line in lines)


FOUND = {
    str(file.relative_to(RECIPES).with_suffix("")): file
    for file in sorted(RECIPES.rglob("*.yaml"))
    if NAMES_A_PUBLICATION.search(header(file))
}


def arms(file: Path) -> dict[str, tuple[dict[str, Any], Recipe]]:
    """Name of each arm -> what it sets, and its recipe; a recipe is one arm, which sets nothing."""
    if not is_sweep_file(read_with_places(file)[0]):
        return {"": ({}, load_recipe(file))}
    request = read_request(file)
    named = combine(request.axes, request.named, request.exclude)
    return {
        name: (
            settings,
            load_recipe(
                request.recipe, [*request.overrides, *(write_override(key, value) for key, value in settings.items())]
            ),
        )
        for name, settings in named.items()
    }


def test_every_recipe_that_names_a_publication_has_a_row() -> None:
    assert FOUND.keys() == ROWS.keys()


@pytest.mark.parametrize("name", FOUND)
def test_a_recipe_that_names_a_publication_has_its_settings_and_its_figures(name: str) -> None:
    settings, figures = ROWS[name]
    for varied, recipe in arms(FOUND[name]).values():
        given = dict(leaves(recipe.model_dump()))
        expected = settings | {key: value for key, value in varied.items() if key in settings}
        assert {key: given.get(key) for key in expected} == expected
    said = header(FOUND[name])
    assert [figure for figure in figures if figure not in said] == []
    assert recipe.world == "virtual" or said.endswith("Not measured by us yet.")


def test_the_rebuttals_table_has_two_arms_over_six_bounds_and_a_llama_under_two() -> None:
    runs = arms(FOUND["study/rebuttal-staleness"]).values()
    table = {(recipe.model.path, recipe.advantage.kind, recipe.rollout.staleness) for _, recipe in runs}
    qwen, llama = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"
    bounds = (0, 1, 2, 4, 8, 16)
    assert table == {(qwen, kind, bound) for kind in ("grpo", "rloo") for bound in bounds} | {
        (llama, "grpo", bound) for bound in (4, 8)
    }
    assert all(recipe.eval.suites == ("aime24", "aime25", "amc23", "math500") for _, recipe in runs)
