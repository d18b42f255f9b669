"""Account for everything that was generated, and compare the groups that were trained with those that were not."""

import math
from collections.abc import Callable, Iterator, Sequence

from arl.report.arms import Arm
from arl.report.parts import Prose, ReportSection, Table, arm_table, by_arm
from arl.report.runs import LoadedRun
from arl.report.statistics import MeanOfSeeds, text

TOKENS = ("trained", "rejected", "failed", "dropped", "in_flight")
GENERATED = "audit/tokens_generated"
GROUPS = {
    "rejected": "groups/rejected",
    "failed": "groups/failed",
    "dropped": "groups/dropped",
    "in flight": "audit/groups_in_flight",
}
POPULATIONS = ("generated", "trained", "rejected", "failed", "dropped")
QUANTITIES = {"length": "length of groups, tokens", "reward": "reward of groups"}
MATTERS = 0.05  # of the mean of all groups that ended


def section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section about what became of everything that was generated."""
    lines = by_arm(arms, _findings) or [
        "No arm trained groups that differ from the generated ones by more than 5 % in length or reward."
    ]
    tokens = arm_table(
        arms,
        {
            "generated": _last(GENERATED, ",.0f"),
            **{part.replace("_", " "): _last(f"audit/tokens_{part}", ",.0f") for part in TOKENS},
            "unaccounted": lambda arm: text(arm.estimate(unaccounted), ",.0f"),
        },
        id="ledger-tokens",
        title="Sampled tokens",
        caption="Since the start, mean over seeds. Generated = trained + rejected + failed + dropped + in flight; "
        "unaccounted is what the sum leaves, and 0 in a sound ledger.",
    )
    groups = arm_table(
        arms,
        {
            "trained": lambda arm: text(arm.estimate(_trained_groups), ",.0f"),
            **{name: _last(metric, ",.0f") for name, metric in GROUPS.items()},
        },
        id="ledger-groups",
        title="Groups (a problem with all its episodes)",
        caption="Since the start, mean over seeds. Trained: groups of a step × steps. Every admitted group is in one "
        "of these columns.",
    )
    populations = [_population_table(arms, quantity, title) for quantity, title in QUANTITIES.items()]
    return ReportSection(
        id="ledger",
        title="What became of what was generated? Does training select?",
        items=[Prose(id="ledger-said", lines=lines), tokens],
        more=[groups, *populations],
    )


def unaccounted(run: LoadedRun) -> float:
    """Return generated − all that became of it, tokens, at the last step."""
    return run.last(GENERATED) - math.fsum(run.last(f"audit/tokens_{part}") for part in TOKENS)


def _trained_groups(run: LoadedRun) -> float:
    return float(run.recipe["rollout.problems_per_step"]) * run.last_step


def _last(metric: str, form: str) -> Callable[[Arm], str]:
    return lambda arm: text(arm.last(metric), form)


def _population_table(arms: Sequence[Arm], quantity: str, title: str) -> Table:
    means = {population: _last(f"audit/{quantity}_{population}", ".4g") for population in POPULATIONS}
    return arm_table(
        arms,
        means | {"trained − generated": lambda arm: text(_gap(arm, quantity), "+.3g", with_interval=True)},
        id=f"ledger-{quantity}",
        title=f"Mean {title}",
        caption="At the last step, mean over seeds. Generated: all that ended. A lost group's length is a lower bound. "
        "The last column is the difference between trained and generated, with its 95 % interval over seeds.",
    )


def _gap(arm: Arm, quantity: str) -> MeanOfSeeds | None:
    """Return how far trained groups are above all that ended."""
    return arm.estimate(lambda run: run.last(f"audit/{quantity}_trained") - run.last(f"audit/{quantity}_generated"))


def _findings(arm: Arm) -> Iterator[str]:
    for quantity in QUANTITIES:
        yield from _selection(arm, quantity)
    for run in arm.runs:
        for line in run.selection_bias:
            yield f"seed {run.seed}: trained and dropped groups: {line}."
        rest = unaccounted(run)
        if math.isfinite(rest) and rest != 0:
            yield f"seed {run.seed}: {rest:,.0f} generated tokens are not accounted for."


def _selection(arm: Arm, quantity: str) -> Iterator[str]:
    """Say that trained groups differ from generated ones, if that is more than noise and more than a little."""
    gap = _gap(arm, quantity)
    generated = arm.last(f"audit/{quantity}_generated")
    if gap is None or generated is None or not generated.mean:
        return
    share = gap.mean / abs(generated.mean)
    if abs(share) < MATTERS or (gap.low is not None and gap.holds_zero):
        return
    interval = "one seed" if gap.low is None else f"{gap.seeds} seeds, the interval does not hold 0"
    size = f"{abs(share):.0%} {'above' if share > 0 else 'below'}"
    rejected = arm.last("groups/rejected")
    is_intended = rejected is not None and rejected.mean
    intended = " Rejected groups are part of it, as the filter or the env intends." if is_intended else ""
    yield f"the mean {quantity} of trained groups is {size} that of all that ended ({interval}).{intended}"
