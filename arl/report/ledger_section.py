"""Account for everything that was generated, and compare the groups that were trained with those that were not."""

import math
from collections.abc import Iterator, Sequence

from arl.report.arms import Arm
from arl.report.parts import Item, Prose, ReportSection, Table
from arl.report.read_runs import LoadedRun
from arl.report.seed_means import by_arm, last_of, not_recorded, over_seeds, text
from arl.report.statistics import MeanOfSeeds

TOKENS = ("trained", "rejected", "failed", "dropped", "in_flight")
GENERATED = "audit/tokens_generated"
GROUPS = {
    "rejected": "groups/rejected",
    "failed": "groups/failed",
    "dropped": "groups/dropped",
    "in flight": "audit/groups_in_flight",
}
POPULATIONS = ("generated", "trained", "rejected", "failed", "dropped")
QUANTITIES = {"length": "tokens", "reward": ""}
MATTERS = 0.05  # of the mean of all groups that ended


def ledger_section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section about what became of everything that was generated."""
    items: list[Item] = [Prose(id="ledger-said", lines=_sentences(arms))]
    if any(GENERATED in run.columns.numbers for arm in arms for run in arm.runs):
        items.append(_token_table(arms))
    items.append(_group_table(arms))
    items += [_population_table(arms, quantity, unit) for quantity, unit in QUANTITIES.items()]
    return ReportSection(id="ledger", title="What became of what was generated? Does training select?", items=items)


def unaccounted(run: LoadedRun) -> float:
    """Return generated − all that became of it, tokens, at the last step; NaN if a part was not recorded."""
    parts = [run.columns.last(f"audit/tokens_{part}") for part in TOKENS]
    return run.columns.last(GENERATED) - math.fsum(parts)


def _token_table(arms: Sequence[Arm]) -> Table:
    rows = []
    for arm in arms:
        counts = [text(last_of(arm, f"audit/tokens_{part}"), ",.0f") for part in TOKENS]
        rest = text(over_seeds(arm, unaccounted), ",.0f")
        rows.append([arm.name, text(last_of(arm, GENERATED), ",.0f"), *counts, rest])
    return Table(
        id="ledger-tokens",
        title="Sampled tokens",
        caption="Since the start, mean over seeds. Generated = trained + rejected + failed + dropped + in flight; "
        "unaccounted is what the sum leaves, and 0 in a sound ledger.",
        header=["arm", "generated", *(part.replace("_", " ") for part in TOKENS), "unaccounted"],
        rows=rows,
        numeric=[False, *[True] * (len(TOKENS) + 2)],
    )


def _group_table(arms: Sequence[Arm]) -> Table:
    rows = []
    for arm in arms:
        counts = [text(last_of(arm, metric), ",.0f") for metric in GROUPS.values()]
        trained = text(over_seeds(arm, groups_trained), ",.0f")
        rows.append([arm.name, trained, *counts])
    return Table(
        id="ledger-groups",
        title="Groups (a problem with all its episodes)",
        caption="Since the start, mean over seeds. Trained: groups of a step × steps. Every admitted group is in one "
        "of these columns.",
        header=["arm", "trained", *GROUPS],
        rows=rows,
        numeric=[False, *[True] * (len(GROUPS) + 1)],
    )


def groups_trained(run: LoadedRun) -> float:
    """Return the groups that were trained: each step takes as many as the recipe says."""
    per_step = run.recipe.get("rollout.problems_per_step")
    return math.nan if per_step is None else float(per_step) * run.last_step


def _population_table(arms: Sequence[Arm], quantity: str, unit: str) -> Table:
    rows = []
    for arm in arms:
        means = [text(last_of(arm, f"audit/{quantity}_{population}"), ".4g") for population in POPULATIONS]
        gap = over_seeds(arm, lambda run: _gap(run, quantity))
        rows.append([arm.name, *means, _with_interval(gap)])
    return Table(
        id=f"ledger-{quantity}",
        title=f"Mean {quantity} of groups{f', {unit}' if unit else ''}",
        caption="At the last step, mean over seeds. Generated: all that ended. A lost group's length is a lower bound. "
        "The last column is the difference between trained and generated, with its 95 % interval over seeds.",
        header=["arm", *POPULATIONS, "trained − generated"],
        rows=rows,
        numeric=[False, *[True] * (len(POPULATIONS) + 1)],
    )


def _gap(run: LoadedRun, quantity: str) -> float:
    return run.columns.last(f"audit/{quantity}_trained") - run.columns.last(f"audit/{quantity}_generated")


def _with_interval(estimate: MeanOfSeeds | None) -> str:
    if estimate is None or estimate.low is None:
        return text(estimate, "+.3g")
    return f"{estimate.mean:+.3g} [{estimate.low:+.3g}, {estimate.high:+.3g}]"


def _sentences(arms: Sequence[Arm]) -> list[str]:
    lines = by_arm(arms, _differences)
    if not lines:
        lines.append("No arm trained groups that differ from the generated ones by more than 5 % in length or reward.")
    wanted = [GENERATED, *(f"audit/{quantity}_generated" for quantity in QUANTITIES)]
    return lines + not_recorded(arms, wanted)


def _differences(arm: Arm) -> Iterator[str]:
    for quantity in QUANTITIES:
        yield from _selection(arm, quantity)
    for run in arm.runs:
        for line in run.selection_bias:
            yield f"seed {run.seed}: trained and dropped groups: {line}."
        rest = unaccounted(run)
        if math.isfinite(rest) and rest != 0:
            yield f"seed {run.seed}: {rest:,.0f} generated tokens are not accounted for."


def _selection(arm: Arm, quantity: str) -> list[str]:
    """Say that trained groups differ from generated ones, if that is more than noise and more than a little."""
    gap = over_seeds(arm, lambda run: _gap(run, quantity))
    generated = last_of(arm, f"audit/{quantity}_generated")
    if gap is None or generated is None or not generated.mean:
        return []
    share = gap.mean / abs(generated.mean)
    if abs(share) < MATTERS or (gap.low is not None and gap.holds_zero):
        return []
    interval = "one seed" if gap.low is None else f"{gap.seeds} seeds, the interval does not hold 0"
    size = f"{abs(share):.0%} {'above' if share > 0 else 'below'}"
    rejected = last_of(arm, "groups/rejected")
    intended = ""
    if rejected is not None and rejected.mean:
        intended = " Rejected groups are part of it, as the filter or the env intends."
    return [f"the mean {quantity} of trained groups is {size} that of all that ended ({interval}).{intended}"]
