"""Sampled accuracy on held-out problems, under whatever version the engines serve."""

import asyncio
from collections.abc import Sequence

from arl.rollout.episodes import Episodes
from arl.types import Accuracy, Problem


async def evaluate(episodes: Episodes, problems: Sequence[Problem], temperature: float, name: str) -> Accuracy:
    """One episode per problem, all open at once; no weights may be published meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        runs = [
            tasks.create_task(episodes.run_group(f"{name}.{i}", problem, 1, temperature))
            for i, problem in enumerate(problems)
        ]
    trajectories = [run.result()[0] for run in runs]
    versions = {int(v) for t in trajectories for v in t.policy_versions[t.loss_mask]}
    assert len(versions) == 1, f"an evaluation of one version was sampled by {sorted(versions)}"
    mean = sum(t.reward for t in trajectories) / len(trajectories)
    return Accuracy(mean, len(trajectories), versions.pop())
