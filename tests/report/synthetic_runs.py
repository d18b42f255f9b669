"""Write run directories with known numbers, as real runs write them, for tests of reports."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from arl.config.recipe_file import dump_recipe, make_recipe

P = 4  # groups of a step
BUCKETS = 7
TOKENS = 1000.0  # of a step

Line = dict[str, Any]


def write_run(
    directory: Path,
    settings: Sequence[str] = (),
    *,
    seed: int = 0,
    steps: int = 12,
    accuracy: float = 0.5,
    suites: Sequence[str] = ("held_out",),
    eval_every: int = 5,
    is_finished: bool = True,
) -> Path:
    """Write one run: its accuracy rises from 0.1 to about `accuracy`, and every step has `TOKENS` tokens in 2 s.

    Args:
        settings: `section.field=value`, as of --set.
    """
    directory.mkdir(parents=True)
    write_recipe(directory, settings, seed)
    rng = np.random.default_rng(seed)
    age = _age(settings)
    lines = [evaluation(0, dict.fromkeys(suites, 0.1))]
    for step in range(1, steps + 1):
        lines.append(step_record(step, age, float(rng.normal(0, 0.01))))
        if step % eval_every == 0 or step == steps:
            lines.append(evaluation(step, {suite: _learned(accuracy, step, steps, rng) for suite in suites}))
    write_metrics(directory, lines)
    if is_finished:
        (directory / "summary.json").write_text(json.dumps({"selection_bias": []}))
    return directory


def write_recipe(directory: Path, settings: Sequence[str], seed: int) -> None:
    """Write recipe.yaml, resolved by the real code."""
    tree = {"name": directory.name, "data": {"task": "running_checksum"}, "model": {"tiny": {}}}
    fixed = [f"seed={seed}", f"output.directory={directory.parent}", f"rollout.problems_per_step={P}"]
    recipe = make_recipe(tree, [*fixed, "train.minibatches=2", *settings], directory / "recipe.yaml")
    (directory / "recipe.yaml").write_text(dump_recipe(recipe))


def write_metrics(directory: Path, lines: Sequence[Line]) -> None:
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _age(settings: Sequence[str]) -> int:
    """Return the age of every token: the bound, at most 3."""
    bounds: list[int | None] = [
        yaml.safe_load(setting.partition("=")[2]) for setting in settings if "staleness=" in setting
    ]
    return min([3, *(bound for bound in bounds if bound is not None)])


def _learned(accuracy: float, step: int, steps: int, rng: np.random.Generator) -> float:
    rise = (accuracy - 0.1) * step / steps
    return float(0.1 + rise + rng.normal(0, 0.01))


def evaluation(version: int, accuracies: dict[str, float]) -> Line:
    line: Line = {"step": version, "policy_version": version, "time_s": 2.0 * version + 0.5}
    for suite, accuracy in accuracies.items():
        line |= {f"eval/{suite}/accuracy": accuracy, f"eval/{suite}/problems": 16}
    return line


def step_record(step: int, age: int, noise: float = 0.0) -> Line:
    """Return what is recorded of a step. The trainer waits 1 s of 2 s, of which 0.8 s for late groups."""
    bucket = min(age, 3)
    trained = TOKENS * step
    return {
        "step": step,
        "policy_version": step,
        "time_s": 2.0 * step,
        "reward/trained_mean": 0.5 + step / 1000 + noise,
        "reward/generated_mean": 0.4 + step / 1000 + noise,
        "tokens/trained": TOKENS,
        "tokens/trained_total": TOKENS * step,
        "throughput/trained_tokens_per_s": TOKENS / 2.0,
        "token_age/histogram": [0] * age + [int(TOKENS)],
        "token_age/mean": float(age),
        "staleness/max": age,
        "idle/trainer": 0.5,
        "idle/engine": 0.2,
        "time/train_s": 0.6,
        "time/proximal_s": 0.1,
        "sync/blocking_seconds": 0.1,
        "kl/behavior_proximal": 0.01 * (age + 1),
        "ratio/clip_fraction": 0.05,
        "groups/failed": 0,
        "groups/rejected": 2 * step,
        "groups/dropped": 0,
        "audit/length_generated": 100.0,
        "audit/length_trained": 100.0,
        "audit/reward_generated": 0.4,
        "audit/reward_trained": 0.5,
        "time/step_s": 2.0,
        "time/pack_s": 0.05,
        "sync/seconds": 0.2,
        "wait/groups_s": 0.2,
        "wait/bound_s": 0.8,
        "wait/gate_s": 0.3,
        "sync/swaps": 1,
        "sync/paused_s": 0.02,
        "sync/recomputed_tokens": 100,
        "ratio/mean": 1.0,
        "ratio/clip_fraction_up": 0.03,
        "behavior_weight/effective_sample_size": 0.9,
        "kl/proximal_current": 0.001,
        "by_age/tokens": by_bucket({0: 100.0, bucket: TOKENS - 100.0}),
        "by_age/ratio": by_bucket({0: 1.0, bucket: 1.1}),
        "by_age/clip_up": by_bucket({0: 0.01, bucket: 0.04}),
        "by_age/kl_behavior_proximal": by_bucket({0: 0.001, bucket: 0.02}),
        "by_age/kl_proximal_current": by_bucket({0: 0.001, bucket: 0.002}),
        "audit/tokens_generated": trained + 500.0 * step + 300.0,
        "audit/tokens_trained": trained,
        "audit/tokens_rejected": 500.0 * step,
        "audit/tokens_failed": 0.0,
        "audit/tokens_dropped": 0.0,
        "audit/tokens_in_flight": 300.0,
    }


def by_bucket(values: dict[int, float]) -> list[float | None]:
    """Return one number for each age bucket; None where `values` has none."""
    return [values.get(bucket) for bucket in range(BUCKETS)]


def write_sweep(
    directory: Path, bounds: Sequence[int], kinds: Sequence[str], seeds: int, steps: int = 12, **fields: Any
) -> Path:
    """Write the runs of a sweep over staleness and objectives. Under ppo alone, accuracy falls with the bound."""
    for bound in bounds:
        for kind in kinds:
            loss = 0.05 * math.log2(1 + bound) if kind == "ppo" else 0.0
            for seed in range(seeds):
                write_run(
                    directory / f"staleness={bound},kind={kind}" / f"seed-{seed}",
                    [f"rollout.staleness={bound}", f"objective.kind={kind}"],
                    seed=seed,
                    steps=steps,
                    accuracy=0.8 - loss,
                    **fields,
                )
    return directory
