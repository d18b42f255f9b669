"""Write run directories with known numbers, as real runs write them, for tests of reports."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arl.config.recipe_file import dump_recipe, make_recipe

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
    is_finished: bool = True,
) -> Path:
    """Write one run: its accuracy rises from 0.1 to about `accuracy`, and every step has `TOKENS` tokens in 2 s.

    Args:
        settings: `section.field=value`, as of --set.
    """
    directory.mkdir(parents=True)
    write_recipe(directory, settings, seed)
    lines = []
    for step in range(steps + 1):
        if step > 0:
            lines.append(step_record(step, age=2))
        if step % 5 == 0 or step == steps:
            learned = 0.1 + (accuracy - 0.1) * step / steps + seed / 100
            lines.append(evaluation(step, dict.fromkeys(suites, learned)))
    write_metrics(directory, lines)
    if is_finished:
        (directory / "summary.json").write_text(json.dumps({"selection_bias": []}))
    return directory


def write_recipe(directory: Path, settings: Sequence[str], seed: int) -> None:
    """Write recipe.yaml, resolved by the real code."""
    tree = {"name": directory.name, "data": {"task": "running_checksum"}, "model": {"tiny": {}}}
    fixed = [f"seed={seed}", f"output.directory={directory.parent}", "rollout.problems_per_step=4"]
    recipe = make_recipe(tree, [*fixed, "train.minibatches=2", *settings], directory / "recipe.yaml")
    (directory / "recipe.yaml").write_text(dump_recipe(recipe))


def write_metrics(directory: Path, lines: Sequence[Line]) -> None:
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def evaluation(version: int, accuracies: dict[str, float], problems: int = 10_000) -> Line:
    scores = {f"eval/{suite}/accuracy": accuracy for suite, accuracy in accuracies.items()}
    counts = {f"eval/{suite}/problems": problems for suite in accuracies}
    return {"step": version, "policy_version": version, "time_s": 2.0 * version + 0.5} | scores | counts


def step_record(step: int, age: int) -> Line:
    """Return what is recorded of a step. The trainer waits 1 s of 2 s, of which 0.8 s for late groups."""
    trained = TOKENS * step
    return {
        "step": step,
        "policy_version": step,
        "time_s": 2.0 * step,
        "reward/trained_mean": 0.5 + step / 1000,
        "reward/generated_mean": 0.4 + step / 1000,
        "tokens/trained": TOKENS,
        "tokens/trained_total": trained,
        "throughput/trained_tokens_per_s": TOKENS / 2.0,
        "token_age/mean": float(age),
        "staleness/max": age,
        "idle/engine": 0.2,
        "time/train_s": 0.6,
        "time/proximal_s": 0.1,
        "time/step_s": 2.0,
        "time/pack_s": 0.05,
        "sync/blocking_seconds": 0.1,
        "sync/paused_s": 0.02,
        "wait/groups_s": 0.2,
        "wait/bound_s": 0.8,
        "wait/gate_s": 0.3,
        "ratio/mean": 1.0,
        "by_age/tokens": [100.0, TOKENS - 100.0, *[None] * 5],
        "by_age/ratio": [1.0, 1.1, *[None] * 5],
        "audit/tokens_generated": trained + 500.0 * step + 300.0,
        "audit/tokens_trained": trained,
        "audit/tokens_rejected": 500.0 * step,
        "audit/tokens_failed": 0.0,
        "audit/tokens_dropped": 0.0,
        "audit/tokens_in_flight": 300.0,
    }


def write_sweep(
    directory: Path, bounds: Sequence[int], kinds: Sequence[str], seeds: int, suites: Sequence[str] = ("held_out",)
) -> Path:
    """Write the runs of a sweep over staleness and objectives. Under ppo alone, accuracy falls with the bound."""
    for bound in bounds:
        for kind in kinds:
            loss = 0.05 * math.log2(1 + bound) if kind == "ppo" else 0.0
            for seed in range(seeds):
                run = directory / f"staleness={bound},kind={kind}" / f"seed-{seed}"
                settings = [f"rollout.staleness={bound}", f"objective.kind={kind}"]
                write_run(run, settings, seed=seed, accuracy=0.8 - loss, suites=suites)
    return directory
