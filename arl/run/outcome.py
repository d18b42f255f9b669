"""Summarize what a run came to."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from arl.config.recipe import Recipe
from arl.files import replace_file, writing
from arl.metrics.names import Record, number
from arl.metrics.recorder import Recorder
from arl.metrics.run_files import SUMMARY
from arl.metrics.summary import Summary, TrainerMemory, mean_idle, mean_pause, weights_sha256
from arl.rollout.ledger import Ledger
from arl.run.preflight import Plan
from arl.types import Accuracy

MEMORY = "hardware/memory_gb"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Hold what is left of a segment when its world is closed."""

    before: Accuracy | None
    after: Accuracy | None
    version: int  # the last one that was trained
    training_seconds: float  # of the clock, from the first admission to the last swap
    recorder: Recorder
    ledger: Ledger
    is_stopped: bool = False  # by the user, before its end


def summarize(recipe: Recipe, directory: Path, plan: Plan, outcome: Outcome, seconds: float) -> Summary:
    """Summarize a run on one page, and write it to its summary.json.

    Args:
        plan: of the run, with the memory that was predicted.
        seconds: of the whole command, on the run's clock.
    """
    before = outcome.before
    after = outcome.after
    recorder = outcome.recorder
    ledger = outcome.ledger
    steps = [record for record in recorder.read_records() if "tokens/trained" in record]
    summary = Summary(
        directory=str(directory),
        accuracy_before=before.mean_reward if before else None,
        accuracy_after=after.mean_reward if after else None,
        eval_problems=after.problems if after else 0,
        seconds=seconds,
        training_seconds=outcome.training_seconds,
        steps=len(steps),
        tokens_trained=int(sum(number(record, "tokens/trained") for record in steps)),
        tokens_generated=int(sum(number(record, "tokens/generated") for record in steps)),
        token_ages=dict(sorted(recorder.state.token_ages.items())),
        trajectories_spanning_versions=recorder.state.num_spanning,
        groups={"trained": ledger.trained, **ledger.lost, "in flight": ledger.in_flight},
        selection=recorder.state.selection,
        selection_bias=recorder.state.selection.warnings(),
        idle_trainer=mean_idle(steps, "trainer"),
        idle_engine=mean_idle(steps, "engine"),
        pause=mean_pause(steps),
        weights_sha256=weights_sha256(directory / "checkpoints" / f"step_{outcome.version}"),
        trainer_memory=_trainer_memory(recipe, plan, steps),
    )
    file = directory / SUMMARY
    with writing(file):  # last, because a run that has it is finished
        replace_file(file, msgspec.json.format(msgspec.json.encode(summary)))
    return summary


def _trainer_memory(recipe: Recipe, plan: Plan, steps: list[Record]) -> TrainerMemory | None:
    """Return the most that a rank took, and on GPUs what was predicted: both count what torch allocates there."""
    measured = [number(record, MEMORY) for record in steps if MEMORY in record]
    if recipe.world_traits.one_process or not measured:
        return None
    if plan.memory is None or not plan.placement.on_gpus:
        return TrainerMemory(max(measured), predicted=None)
    return TrainerMemory(max(measured), predicted=plan.memory.rank_peak / 1e9)
