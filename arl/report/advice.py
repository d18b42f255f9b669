"""Say which side is the bottleneck and what to change, each time with the number that says so."""

from collections.abc import Callable, Sequence

from arl.metrics.summary import MUCH_RECOMPUTED, recomputation_advice
from arl.report.arms import LAG, STALENESS, Arm, show
from arl.report.ledger_section import groups_trained
from arl.report.parts import Prose, ReportSection
from arl.report.seed_means import by_arm, last_of, metric_of, over_seeds
from arl.report.speed import mean_shares
from arl.report.speed_numbers import (
    BUSY,
    CAUSE_UNKNOWN,
    GATED,
    PAUSED,
    TRAINER_PARTS,
    UNEXPLAINED,
    Shares,
    engine_shares,
    trainer_shares,
)

NOTHING = "nothing to change: no number of these runs asks for it."
MUCH = 0.2  # of a side's time
LITTLE = 0.05


def advice_section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section with advice on each arm."""
    lines = by_arm(arms, lambda arm: advice(arm) or [NOTHING])
    return ReportSection(id="advice", title="What to change?", items=[Prose(id="advice-said", lines=lines)])


def advice(arm: Arm) -> list[str]:
    """Return what the numbers of an arm suggest; nothing if they suggest nothing."""
    rules: tuple[Callable[[Arm], list[str]], ...] = (
        _bottleneck,
        _swaps,
        _recomputation,
        _queue,
        _weights,
        _rewards,
        _lengths,
        _losses,
    )
    return [line for rule in rules for line in rule(arm)]


def _bottleneck(arm: Arm) -> list[str]:
    trainer = mean_shares(arm, trainer_shares)
    engine = mean_shares(arm, engine_shares)
    if not trainer or not engine:
        return ["the bottleneck is unknown, because idle times were not recorded."]
    late = trainer.get(TRAINER_PARTS["wait/bound_s"], 0.0)
    turns = trainer.get(TRAINER_PARTS["wait/device_s"], 0.0)
    waits = late + turns + trainer.get(TRAINER_PARTS["wait/groups_s"], 0.0) + trainer.get(CAUSE_UNKNOWN, 0.0)
    engine_idle = 1.0 - engine[BUSY]
    sides = f"the trainer waits {waits:.0%} of its time, the engines are idle {engine_idle:.0%} of theirs"
    if waits < MUCH and engine_idle < MUCH:
        return _unexplained(trainer)
    if late > MUCH:
        return [
            f"late groups hold the trainer up for {late:.0%} of its time ({sides}). A larger rollout.staleness gives "
            "them longer; rollout.late=drop gives them up, which selects."
        ]
    if waits >= MUCH and engine_idle >= MUCH:
        return [f"both sides wait for each other: {sides}. {_looser(arm, engine.get(GATED))}"]
    if waits >= MUCH:
        return [f"generation is the bottleneck: {sides}. More engine replicas, threads or slots."]
    gated = engine.get(GATED)
    cause = f", {gated:.0%} because admission was held back" if gated else ""
    return [
        f"training is the bottleneck: {sides}{cause}. More train.ranks or threads, or a cheaper objective. Whatever "
        f"engines do, no more than the {waits:.0%} that the trainer waits can be gained."
    ]


def _looser(arm: Arm, gated: float | None) -> str:
    recipe = arm.runs[0].recipe
    if recipe.get(LAG) is not None:
        return "An exact lag makes them take turns; that is its price."
    if recipe.get("mode") == "collocated":
        return "They share their devices by turns; mode disaggregated gives each its own."
    if _is_tail_batched(arm):
        return "rollout.tail_batching keeps every step fresh, so they take turns; that is its price."
    bound = recipe.get(STALENESS)
    if bound is None:
        return "Without a bound rollout.max_groups holds engines back; a larger one lets more of both happen at once."
    if bound == 0:
        return "rollout.staleness is 0, which is synchronous; 1 or more lets both work at once."
    waited = metric_of(arm, "queue_age/mean")
    if gated is not None and gated < LITTLE:
        return f"The staleness bound holds engines back for {gated:.0%} only, so a larger one changes little."
    if waited is not None and waited.mean >= 1:
        return f"Groups wait {waited.mean:.1f} versions in the buffer, so a larger rollout.staleness would not help."
    return f"rollout.staleness is {show(STALENESS, bound)}; a larger one lets more of both happen at once."


def _unexplained(trainer: Shares) -> list[str]:
    rest = trainer.get(UNEXPLAINED, 0.0)
    if rest < MUCH:
        return []
    return [f"no side waits much, but {rest:.0%} of the trainer's time is unexplained; trace.json may show it."]


def _swaps(arm: Arm) -> list[str]:
    paused = mean_shares(arm, engine_shares).get(PAUSED, 0.0)
    if paused < LITTLE:
        return []
    return [f"engines are paused for swaps {paused:.0%} of their time: a faster sync.transport, or larger steps."]


def _recomputation(arm: Arm) -> list[str]:
    recomputed = metric_of(arm, "sync/recomputed_tokens")
    generated = metric_of(arm, "tokens/generated")
    if recomputed is None or generated is None or recomputed.mean <= MUCH_RECOMPUTED * generated.mean:
        return []
    return [f"{recomputation_advice(recomputed.mean / generated.mean)}."]


def _queue(arm: Arm) -> list[str]:
    waited = metric_of(arm, "queue_age/mean")
    bound = arm.runs[0].recipe.get(STALENESS)
    if waited is None or waited.mean < 1 or not isinstance(bound, int) or bound < 2:
        return []
    return [
        f"finished groups wait {waited.mean:.1f} versions in the buffer under rollout.staleness {bound}: a smaller "
        "bound makes data fresher and costs little speed."
    ]


def _weights(arm: Arm) -> list[str]:
    lines = []
    effective = metric_of(arm, "behavior_weight/effective_sample_size")
    if effective is not None and effective.mean < 0.5:
        lines.append(
            f"the effective sample size of behavior weights is {effective.mean:.0%}: most of the batch counts little. "
            "A smaller rollout.staleness or train.learning_rate."
        )
    capped = metric_of(arm, "behavior_weight/capped_fraction")
    if capped is not None and capped.mean > LITTLE:
        lines.append(f"{capped.mean:.0%} of tokens meet the cap of the behavior weight, which biases the gradient.")
    clipped = metric_of(arm, "ratio/clip_fraction")
    if clipped is not None and clipped.mean > MUCH:
        lines.append(
            f"{clipped.mean:.0%} of tokens are clipped and teach nothing: a smaller train.learning_rate, fewer "
            "train.minibatches, or fresher data."
        )
    return lines


def _rewards(arm: Arm) -> list[str]:
    equal = metric_of(arm, "groups/equal_rewards")
    if equal is None or equal.mean < 0.5 or arm.runs[0].recipe.get("advantage.kind", "grpo") != "grpo":
        return []
    return [
        f"{equal.mean:.0%} of groups have equal rewards, from which GRPO learns nothing: other problems, a larger "
        "rollout.group_size, or rollout.filter arl.rollout.filters:reward_varies."
    ]


def _lengths(arm: Arm) -> list[str]:
    truncated = metric_of(arm, "truncated")
    if truncated is None or truncated.mean < MUCH:
        return []
    return [f"{truncated.mean:.0%} of answers are cut off: a larger rollout.max_new_tokens."]


def _losses(arm: Arm) -> list[str]:
    remedies = {"failed": "logs say why; their problems are missing from training"}
    if arm.runs[0].recipe.get("rollout.late") == "drop":
        remedies["dropped"] = "that selects quick answers; rollout.late=wait selects nothing"
    elif _is_tail_batched(arm):
        remedies["dropped"] = "rollout.tail_batching starts more than it trains; a smaller oversample wastes less"
    lines = []
    for fate, remedy in remedies.items():
        share = _share(arm, f"groups/{fate}")
        if share > LITTLE:
            lines.append(f"{share:.0%} of groups were {fate}: {remedy}.")
    return lines


def _is_tail_batched(arm: Arm) -> bool:
    return any(field.startswith("rollout.tail_batching.") for field in arm.runs[0].recipe)


def _share(arm: Arm, metric: str) -> float:
    lost = last_of(arm, metric)
    trained = over_seeds(arm, groups_trained)
    if lost is None or trained is None:
        return 0.0
    return lost.mean / (lost.mean + trained.mean)
