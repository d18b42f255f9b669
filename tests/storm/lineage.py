"""Audit what a run has trained: each group once, whole, in the order of steps, none lost."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from arl.config.recipe_file import load_recipe
from arl.data.problems import ProblemOrder, load_problems

COLUMNS = ["group_id", "problem_id", "trained_at"]


def audit_stopped(run: Path) -> dict[str, Any]:
    """Audit a run that has stopped at some step, and return what it has trained, with what is wrong; empty: nothing."""
    recipe = load_recipe(run / "recipe.yaml")
    rollout = recipe.rollout
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in metrics if "tokens/trained" in record]
    table = pq.read_table(run / "trajectories", columns=COLUMNS).to_pydict()
    rows = [row for row in zip(*(table[name] for name in COLUMNS), strict=True) if row[2] is not None]
    wrong = []
    if steps != list(range(1, len(steps) + 1)):
        wrong.append(f"steps of metrics.jsonl are not 1 … {len(steps)}")
    sizes = Counter((group, step) for group, _, step in rows)
    if set(sizes.values()) != {rollout.group_size}:
        wrong.append("some groups are incomplete, or were trained twice")
    groups = {group: problem for group, problem, _ in rows}
    if len(groups) != len(sizes):
        wrong.append("some groups were trained in two steps")
    of_steps = Counter(step for _, step in sizes)
    first = min(of_steps, default=0)
    expected = {first + step: rollout.problems_per_step for step in range(len(steps))}
    if dict(of_steps) != expected:
        wrong.append(f"the groups of steps differ from {rollout.problems_per_step} of each of {len(steps)} steps")
    wrong += _problems_lost(recipe_problems(run, len(groups)), Counter(groups.values()), _most_open(rollout))
    return {"steps": len(steps), "groups": len(groups), "rows": len(rows), "wrong": wrong}


def _most_open(rollout: Any) -> int:
    """Return how many groups may be open at once, so that the order of what is trained differs by as many."""
    return int((rollout.staleness + 1) * rollout.problems_per_step)


def recipe_problems(run: Path, count: int) -> list[str]:
    """Return the ids of the first problems that a run of this recipe admits."""
    recipe = load_recipe(run / "recipe.yaml")
    order = ProblemOrder(load_problems(recipe.data, 0).training, recipe.seed)
    return [problem.id for problem in itertools.islice(order, count + _most_open(recipe.rollout))]


def _problems_lost(admitted: list[str], trained: Counter[str], most_open: int) -> list[str]:
    """Compare what was trained with what was admitted: what is missing may only be open still, at the end."""
    wrong = []
    surplus = trained - Counter(admitted)
    if surplus:
        wrong.append(f"{surplus.total()} problems were trained more often than admitted, as {next(iter(surplus))}")
    sure = Counter(admitted[: max(0, len(admitted) - 2 * most_open)])
    missing = sure - trained
    if missing:
        wrong.append(f"{missing.total()} problems were lost, as {next(iter(missing))}")
    return wrong
