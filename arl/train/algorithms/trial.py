"""Call an objective and an advantage once on made-up numbers, before anything starts.

A class that declares one thing and computes another would otherwise fail in the first step, minutes after the start.
"""

from typing import Any

import numpy as np

from arl.config.recipe import Recipe
from arl.errors import InputError, RecipeError
from arl.metrics.names import BY_AGE, METRICS, OF_OBJECTIVE
from arl.train.algorithms.advantage import Advantage, EpisodeColumns
from arl.train.algorithms.objective import Objective, TokenColumns
from arl.train.packing import advantages_per_token

LOGGED_BY_BUILT_INS = {name for name in METRICS if name.startswith(("ratio/", "behavior_weight/", "kl/", BY_AGE))}


def try_algorithms(recipe: Recipe) -> None:
    """Try what the recipe chose. Built-in objectives are not tried, because that needs torch, a second to import.

    Raises:
        RecipeError: it raised, or returned something else than it declares.
    """
    assert isinstance(recipe.advantage, Advantage)
    assert isinstance(recipe.objective, Objective)
    try_advantage(recipe.advantage)
    if recipe.objective.kind not in recipe.objective.BUILT_IN:
        try_objective(recipe.objective)


def try_advantage(advantage: Advantage) -> None:
    """Compute the advantages of two groups, one with equal rewards, with an episode that has no loss token."""
    size = max(2, advantage.smallest_group)
    num_loss_tokens = np.arange(2 * size)
    zeros = np.zeros(num_loss_tokens.sum(), np.float32) if "values" in advantage.columns else None
    episodes = EpisodeColumns(
        rewards=np.minimum(np.arange(2.0 * size), size),
        group_sizes=np.array([size, size]),
        num_loss_tokens=num_loss_tokens,
        values=zeros,
        token_rewards=zeros,
    )
    try:
        advantages_per_token(advantage, episodes)
    except Exception as error:  # user code may fail in any way
        raised = f"advantage.kind {advantage.kind}: compute raised {error!r} when it was tried"
        fault = str(error) if isinstance(error, InputError) else raised
        raise RecipeError(f"{fault}; see {advantage.EXAMPLE} for an example") from error


def try_objective(objective: Objective) -> None:
    """Compute the loss of three tokens of two sequences, and its gradient."""
    try:
        fault = _fault(objective.model_copy(update={"teacher": None}))  # whose columns are arl's own matter
    except Exception as error:  # user code may fail in any way
        fault = f"loss raised {error!r}"
    if fault:
        raise RecipeError(
            f"objective.kind {objective.kind}: {fault}, when it was tried with three tokens; see {objective.EXAMPLE} "
            "for an example"
        )


def _fault(objective: Objective) -> str:
    """Say what is wrong with the loss of an example; empty if nothing is."""
    import torch

    optional: dict[str, Any] = {name: torch.tensor([-1.1, -0.4, -2.0]) for name in objective.needed_columns}
    tokens = TokenColumns(
        current_logprobs=torch.tensor([-1.0, -0.5, -2.0], requires_grad=True),
        entropy=torch.tensor([1.5, 0.8, 2.5], requires_grad=True),
        behavior_logprobs=torch.tensor([-1.2, -0.6, -1.9]),
        advantages=torch.tensor([1.0, 1.0, -1.0]),
        policy_versions=torch.tensor([2, 3, 3]),
        sequences=torch.tensor([0, 0, 1]),
        version=3,
        **optional,
    )
    loss, per_token = objective.total(tokens)
    if loss.shape != (3,) or not loss.requires_grad:
        return "the loss is not one number for each token, (N,), with a gradient"
    declared = {statistic.value for statistic in objective.statistics.values()}
    if not per_token.keys() >= declared:
        return f"loss returned the values {sorted(per_token)}, and `metrics` declares {sorted(declared)}"
    for name in objective.statistics:
        if not name.startswith(OF_OBJECTIVE) and name not in LOGGED_BY_BUILT_INS:
            return f"the metric {name} must be one of arl's own for objectives, or begin with {OF_OBJECTIVE}"
    for name, values in per_token.items():
        if values.shape != (3,) or values.requires_grad:
            return f"the value {name} is not one number for each token, (N,), without gradient"
    torch.autograd.grad(loss.sum(), tokens.current_logprobs)
    return ""
