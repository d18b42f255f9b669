"""Say how fast each arm was, where each side's time went, with the share that nothing explains, and what to change.

Trainer: seconds of a step = waits for its batch, by cause + packing + proximal pass + training + snapshot + the rest.
Engines: their time = busy + admission held back + paused for swaps + the rest.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from arl.metrics.alarms import WATCHED, Alarms
from arl.report.arms import STALENESS, Arm, make_arms
from arl.report.parts import ReportSection, Table, arm_table, by_arm, metric_curves
from arl.report.runs import LoadedRun, load_runs
from arl.report.statistics import text

TRAINER_PARTS = {  # metric -> what the trainer did in that time
    "wait/groups_s": "waits: too few groups finished",
    "wait/bound_s": "waits: a late group has to come first",
    "wait/device_s": "waits: the device's turn",
    "time/pack_s": "packs",
    "time/proximal_s": "scores before the updates",  # the proximal policy, models beside it
    "time/critic_s": "trains the critic",
    "time/train_s": "trains",
    "time/halves_s": "measures the gradients of halves",
    "sync/blocking_seconds": "copies weights",
}
UNEXPLAINED = "unexplained"
BUSY = "generates"
GATED = "admission held back"  # by the staleness bound, an exact lag or rollout.max_groups
PAUSED = "paused for swaps"
ENGINE_PARTS = {"wait/gate_s": GATED, "sync/paused_s": PAUSED}
NOTHING = "nothing to change, as far as the numbers say."
MUCH = 0.2  # of a side's time

Shares = dict[str, float]  # what a side's time went to -> its share


def section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section about speed."""
    return ReportSection(
        id="speed",
        title="How fast, and what did each side wait for?",
        items=[
            _rates(arms),
            _shares_table(arms, trainer_shares, "The trainer's time"),
            _shares_table(arms, engine_shares, "The engines' time"),
            metric_curves(arms, "throughput/trained_tokens_per_s", "Trained tokens per second", "tokens/s"),
            metric_curves(arms, "time/step_s", "Time of a step", "seconds"),
        ],
    )


def _rates(arms: Sequence[Arm]) -> Table:
    return arm_table(
        arms,
        "Speed",
        "Means over seeds; seconds are of the run's clock, which is virtual in world virtual. Tokens/s: trained tokens "
        "/ time from the first admission to the last step.",
        {
            "tokens/s": lambda arm: text(arm.estimate(tokens_per_second), ",.0f", with_interval=True),
            "time, s": lambda arm: text(arm.last("time_s"), ",.1f"),
            "swap, s": lambda arm: text(arm.mean("sync/seconds")),
        },
    )


def _shares_table(arms: Sequence[Arm], shares_of: Callable[[LoadedRun], Shares], title: str) -> Table:
    shares = {arm.number: mean_shares(arm, shares_of) for arm in arms}
    named = dict.fromkeys(part for own in shares.values() for part in own if part != UNEXPLAINED)

    def percent_of(part: str) -> Callable[[Arm], str]:
        return lambda arm: _percent(shares[arm.number].get(part))

    caption = (
        "Percent of the time of all steps, mean over seeds. A dash: not recorded. Unexplained is what the named parts "
        "leave; below zero, parts overlap."
    )
    return arm_table(arms, title, caption, {part: percent_of(part) for part in [*named, UNEXPLAINED]})


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{round(100 * share, 1) + 0.0:.1f}"  # + 0.0: no minus before a zero


def tokens_per_second(run: LoadedRun) -> float:
    """Return trained tokens per second of the run's clock, from its first admission to its last step."""
    seconds = run.last("time_s")
    return run.last("tokens/trained_total") / seconds if seconds > 0 else math.nan


def mean_shares(arm: Arm, shares_of: Callable[[LoadedRun], Shares]) -> Shares:
    """Return the mean over seeds of each part of a side's time; of those that recorded it."""
    found = [shares_of(run) for run in arm.runs]
    names = dict.fromkeys(name for shares in found for name in shares)
    return {name: float(np.mean([shares[name] for shares in found if name in shares])) for name in names}


def trainer_shares(run: LoadedRun) -> Shares:
    """Compute the shares of the trainer's time."""
    return _with_rest(_parts(run, TRAINER_PARTS))


def engine_shares(run: LoadedRun) -> Shares:
    """Compute the shares of the engines' time."""
    idle = float(np.nansum(run.number("idle/engine") * run.number("time/step_s")))
    busy = 1.0 - idle / _total(run)
    return _with_rest({BUSY: busy, **_parts(run, ENGINE_PARTS)})


def _with_rest(parts: Shares) -> Shares:
    return parts | {UNEXPLAINED: 1.0 - sum(parts.values())}


def _total(run: LoadedRun) -> float:
    return float(np.nansum(run.number("time/step_s"))) or math.nan


def _parts(run: LoadedRun, names: Mapping[str, str]) -> Shares:
    """Return the share of the time of all steps that each metric has; nothing for one that was never recorded."""
    recorded = {name: run.number(metric) for metric, name in names.items() if np.isfinite(run.number(metric)).any()}
    return {name: float(np.nansum(values)) / _total(run) for name, values in recorded.items()}


def advice_section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section with advice on each arm: each time with the number that says so."""
    lines = by_arm(arms, lambda arm: advice(arm) or [NOTHING])
    return ReportSection(id="advice", title="What to change?", items=list(lines))


def advice(arm: Arm) -> list[str]:
    """Return what the numbers of an arm suggest; nothing if they suggest nothing.

    Where nothing can be learned, nothing else matters.
    """
    reward, spread = arm.mean("reward/trained_mean"), arm.mean("reward/trained_std")
    if reward and spread and spread.mean < 1e-9 and not _has_teacher(arm):
        remedy = "a warm start (`arl sft`), easier problems" if reward.mean <= 0 else "harder problems"
        seen = "see by `arl samples RUN --step 1` what was answered and how it was graded"
        return [f"each step had equal rewards, {reward.mean:g}, and nothing to learn from: {seen}; {remedy}."]
    return [*_alarms(arm), *_bottleneck(arm), *_waste(arm)]


def advice_on_run(directory: Path) -> list[str]:
    """Return what the numbers of one run suggest."""
    arms, _ = make_arms(load_runs([directory])[0])
    return advice(arms[0]) or [NOTHING]


def _alarms(arm: Arm) -> Iterator[str]:
    """Say where the training of a run has left the range of its beginning."""
    for run in arm.runs:
        alarms = Alarms()
        watched = {name: run.columns[name] for name in WATCHED if name in run.columns}
        for i, step in enumerate(run.steps):
            alarms.add({"step": float(step)} | {name: column[i].tolist() for name, column in watched.items()})
        yield from (f"seed {run.seed}, {line}." for line in alarms.said.values())


def _bottleneck(arm: Arm) -> Iterator[str]:
    """Say which side is the bottleneck."""
    trainer = mean_shares(arm, trainer_shares)
    engine = mean_shares(arm, engine_shares)
    late = trainer.get(TRAINER_PARTS["wait/bound_s"], 0.0)
    waits = sum(trainer.get(TRAINER_PARTS[f"wait/{cause}_s"], 0.0) for cause in ("groups", "bound", "device"))
    idle = 1.0 - engine[BUSY]
    paused = engine.get(PAUSED, 0.0)
    starved = idle - paused  # nothing to generate; in a pause an engine has requests
    sides = f"the trainer waits {waits:.0%} of its time, the engines are idle {idle:.0%} of theirs"
    if late > MUCH:
        yield (
            f"late groups hold the trainer up for {late:.0%} of its time ({sides}). A larger rollout.staleness gives "
            "them longer; rollout.late=drop gives them up, which selects."
        )
    elif waits >= MUCH and starved >= MUCH:
        yield f"both sides wait for each other: {sides}. {_looser(arm.runs[0].recipe)}"
    elif waits >= MUCH:
        yield f"generation is the bottleneck: {sides}. More engine replicas, threads or slots."
    elif paused >= MUCH:
        yield (
            f"swaps pause the engines for {paused:.0%} of their time: sync/drain_seconds to sync/resume_seconds say in "
            "what. With a larger rollout.problems_per_step there are fewer swaps."
        )
    elif starved >= MUCH:
        gated = engine.get(GATED)
        cause = f", {gated:.0%} because admission was held back" if gated else ""
        yield f"training is the bottleneck: {sides}{cause}. {_faster(arm.runs[0].recipe)}"


def _faster(recipe: Mapping[str, object]) -> str:
    """Say what makes steps shorter. With one minibatch, loglinear saves no forward."""
    has_proximal_pass = recipe.get("objective.proximal") == "recompute" and recipe.get("train.minibatches") != 1
    return f"More train.ranks or threads{', or objective.proximal=loglinear' if has_proximal_pass else ''}."


def _looser(recipe: Mapping[str, object]) -> str:
    bound = recipe.get(STALENESS)
    if bound is None or recipe.get("mode") == "collocated":
        return "They take turns because of mode collocated, rollout.lag or rollout.max_groups."
    return f"rollout.staleness is {bound}; a larger one lets more of both happen at once."


def _has_teacher(arm: Arm) -> bool:
    """Return whether a teacher trains the tokens of groups with equal rewards too."""
    return arm.mean("kl/teacher") is not None


def _waste(arm: Arm) -> Iterator[str]:
    """Yield what is computed and teaches little."""
    equal = arm.mean("groups/equal_rewards")
    if (
        equal
        and equal.mean >= 0.5
        and not _has_teacher(arm)
        and arm.runs[0].recipe.get("advantage.kind", "grpo") == "grpo"
    ):
        yield (
            f"{equal.mean:.0%} of groups have equal rewards, from which GRPO learns nothing: other problems, a larger "
            "rollout.group_size, or rollout.filter arl.rollout.filters:reward_varies."
        )
    truncated = arm.mean("truncated")
    if truncated and truncated.mean >= MUCH:
        yield f"{truncated.mean:.0%} of answers are cut off: a larger rollout.max_new_tokens."
