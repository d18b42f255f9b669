"""Account for everything that was generated, and compare the groups that were trained with those that were not."""

import math
from collections.abc import Iterator, Mapping, Sequence

from arl.report.arms import Arm
from arl.report.parts import Item, Prose, ReportSection, Table
from arl.report.read_runs import LoadedRun
from arl.report.seed_means import RunNumber, by_arm, last_of, over_seeds, text
from arl.report.statistics import MeanOfSeeds

TOKENS = ("trained", "rejected", "failed", "dropped", "in_flight")
GENERATED = "audit/tokens_generated"
POPULATIONS = ("generated", "trained", "rejected", "failed", "dropped")
QUANTITIES = {"length": "tokens", "reward": ""}
MATTERS = 0.05  # of the mean of all groups that ended


def ledger_section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section about what became of everything that was generated."""
    lines = by_arm(arms, _differences) or [
        "No arm trained groups that differ from the generated ones by more than 5 % in length or reward."
    ]
    tokens = {part.replace("_", " "): _last(f"audit/tokens_{part}") for part in TOKENS}
    items: list[Item] = [
        Prose(id="ledger-said", lines=lines),
        _counts(
            "ledger-tokens",
            "Sampled tokens",
            "Since the start, mean over seeds. Generated = trained + rejected + failed + dropped + in flight; "
            "unaccounted is what the sum leaves, and 0 in a sound ledger.",
            {"generated": _last(GENERATED), **tokens, "unaccounted": unaccounted},
            arms,
        ),
        _counts(
            "ledger-groups",
            "Groups (a problem with all its episodes)",
            "Since the start, mean over seeds. Trained: groups of a step × steps. Every admitted group is in one of "
            "these columns.",
            {
                "trained": lambda run: float(run.recipe["rollout.problems_per_step"]) * run.last_step,
                "rejected": _last("groups/rejected"),
                "failed": _last("groups/failed"),
                "dropped": _last("groups/dropped"),
                "in flight": _last("audit/groups_in_flight"),
            },
            arms,
        ),
        *(_population_table(arms, quantity, unit) for quantity, unit in QUANTITIES.items()),
    ]
    return ReportSection(id="ledger", title="What became of what was generated? Does training select?", items=items)


def unaccounted(run: LoadedRun) -> float:
    """Return generated − all that became of it, tokens, at the last step."""
    return run.columns.last(GENERATED) - math.fsum(run.columns.last(f"audit/tokens_{part}") for part in TOKENS)


def _last(metric: str) -> RunNumber:
    return lambda run: run.columns.last(metric)


def _counts(name: str, title: str, caption: str, columns: Mapping[str, RunNumber], arms: Sequence[Arm]) -> Table:
    return Table(
        id=name,
        title=title,
        caption=caption,
        header=["arm", *columns],
        rows=[[arm.name, *(text(over_seeds(arm, number), ",.0f") for number in columns.values())] for arm in arms],
        numeric=[False, *[True] * len(columns)],
    )


def _population_table(arms: Sequence[Arm], quantity: str, unit: str) -> Table:
    rows = []
    for arm in arms:
        means = [text(last_of(arm, f"audit/{quantity}_{population}"), ".4g") for population in POPULATIONS]
        rows.append([arm.name, *means, _with_interval(_gap(arm, quantity))])
    return Table(
        id=f"ledger-{quantity}",
        title=f"Mean {quantity} of groups{f', {unit}' if unit else ''}",
        caption="At the last step, mean over seeds. Generated: all that ended. A lost group's length is a lower bound. "
        "The last column is the difference between trained and generated, with its 95 % interval over seeds.",
        header=["arm", *POPULATIONS, "trained − generated"],
        rows=rows,
        numeric=[False, *[True] * (len(POPULATIONS) + 1)],
    )


def _gap(arm: Arm, quantity: str) -> MeanOfSeeds | None:
    trained = _last(f"audit/{quantity}_trained")
    generated = _last(f"audit/{quantity}_generated")
    return over_seeds(arm, lambda run: trained(run) - generated(run))


def _with_interval(estimate: MeanOfSeeds | None) -> str:
    if estimate is None or estimate.low is None:
        return text(estimate, "+.3g")
    return f"{estimate.mean:+.3g} [{estimate.low:+.3g}, {estimate.high:+.3g}]"


def _differences(arm: Arm) -> Iterator[str]:
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
    generated = last_of(arm, f"audit/{quantity}_generated")
    if gap is None or generated is None or not generated.mean:
        return
    share = gap.mean / abs(generated.mean)
    if abs(share) < MATTERS or (gap.low is not None and gap.holds_zero):
        return
    interval = "one seed" if gap.low is None else f"{gap.seeds} seeds, the interval does not hold 0"
    size = f"{abs(share):.0%} {'above' if share > 0 else 'below'}"
    rejected = last_of(arm, "groups/rejected")
    is_intended = rejected is not None and rejected.mean
    intended = " Rejected groups are part of it, as the filter or the env intends." if is_intended else ""
    yield f"the mean {quantity} of trained groups is {size} that of all that ended ({interval}).{intended}"
