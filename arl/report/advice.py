"""Say which side is the bottleneck and what to change, each time with the number that says so."""

import math
from collections.abc import Iterator, Sequence

from arl.report.arms import LAG, STALENESS, Arm
from arl.report.parts import Prose, ReportSection
from arl.report.seed_means import by_arm, metric_of
from arl.report.speed import mean_shares
from arl.report.speed_numbers import BUSY, GATED, TRAINER_PARTS, engine_shares, trainer_shares

NOTHING = "nothing to change: no number of these runs asks for it."
MUCH = 0.2  # of a side's time
# Tokens computed again for each one generated. Not measured: if a prefill computes a token ten times as fast as a full
# batch of requests samples one, it is a fifth of the engines' time.
MUCH_RECOMPUTED = 2.0
METRICS = (
    "sync/recomputed_tokens",
    "tokens/generated",
    "behavior_weight/effective_sample_size",
    "groups/equal_rewards",
    "truncated",
)


def advice_section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section with advice on each arm."""
    lines = by_arm(arms, lambda arm: advice(arm) or [NOTHING])
    return ReportSection(id="advice", title="What to change?", items=[Prose(id="advice-said", lines=lines)])


def advice(arm: Arm) -> list[str]:
    """Return what the numbers of an arm suggest; nothing if they suggest nothing."""
    return [*_bottleneck(arm), *_waste(arm)]


def _bottleneck(arm: Arm) -> Iterator[str]:
    trainer = mean_shares(arm, trainer_shares)
    engine = mean_shares(arm, engine_shares)
    late = trainer.get(TRAINER_PARTS["wait/bound_s"], 0.0)
    waits = sum(trainer.get(TRAINER_PARTS[f"wait/{cause}_s"], 0.0) for cause in ("groups", "bound", "device"))
    idle = 1.0 - engine[BUSY]
    sides = f"the trainer waits {waits:.0%} of its time, the engines are idle {idle:.0%} of theirs"
    if late > MUCH:
        yield (
            f"late groups hold the trainer up for {late:.0%} of its time ({sides}). A larger rollout.staleness gives "
            "them longer; rollout.late=drop gives them up, which selects."
        )
    elif waits >= MUCH and idle >= MUCH:
        yield f"both sides wait for each other: {sides}. {_looser(arm)}"
    elif waits >= MUCH:
        yield f"generation is the bottleneck: {sides}. More engine replicas, threads or slots."
    elif idle >= MUCH:
        gated = engine.get(GATED)
        cause = f", {gated:.0%} because admission was held back" if gated else ""
        yield f"training is the bottleneck: {sides}{cause}. More train.ranks or threads, or a cheaper objective."


def _looser(arm: Arm) -> str:
    recipe = arm.runs[0].recipe
    if recipe.get(LAG) is not None:
        return "An exact lag makes them take turns; that is its price."
    if recipe.get("mode") == "collocated":
        return "They share their devices by turns; mode disaggregated gives each its own."
    if recipe.get(STALENESS) is None:
        return "Without a bound rollout.max_groups holds engines back; a larger one lets more of both happen at once."
    return f"rollout.staleness is {recipe[STALENESS]}; a larger one lets more of both happen at once."


def _waste(arm: Arm) -> Iterator[str]:
    """Yield what is computed and teaches little."""
    values = {metric: found.mean for metric in METRICS if (found := metric_of(arm, metric)) is not None}
    recomputed = values.get("sync/recomputed_tokens", 0.0) / (values.get("tokens/generated") or math.inf)
    if recomputed > MUCH_RECOMPUTED:
        yield (
            f"swaps had {recomputed:.1f} tokens computed again for each one generated: keep old caches, "
            "engine.kv_policy=keep, or make steps larger."
        )
    effective = values.get("behavior_weight/effective_sample_size", 1.0)
    if effective < 0.5:
        yield (
            f"the effective sample size of behavior weights is {effective:.0%}: most of the batch counts little. "
            "A smaller rollout.staleness or train.learning_rate."
        )
    equal = values.get("groups/equal_rewards", 0.0)
    if equal >= 0.5 and arm.runs[0].recipe.get("advantage.kind", "grpo") == "grpo":
        yield (
            f"{equal:.0%} of groups have equal rewards, from which GRPO learns nothing: other problems, a larger "
            "rollout.group_size, or rollout.filter arl.rollout.filters:reward_varies."
        )
    truncated = values.get("truncated", 0.0)
    if truncated >= MUCH:
        yield f"{truncated:.0%} of answers are cut off: a larger rollout.max_new_tokens."
