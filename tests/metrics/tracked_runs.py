"""Records, and runs that trackers are given, for tests of trackers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from arl.config.recipe import Recipe
from arl.metrics.base import TrackedRun, TrackerFactory
from arl.metrics.names import Record
from arl.metrics.sampled_episode import SampledEpisode
from arl.metrics.trackers import TrackerThread
from arl.metrics.wandb_tracker import redacted


def tracked_run(
    directory: Path,
    past: Sequence[Record] = (),
    note: Callable[[str], None] = lambda _: None,
    **output: Any,
) -> TrackedRun:
    sections = {"model": {"path": "m"}, "data": {"path": "d"}, "output": output}
    config = Recipe.model_validate(sections).model_dump(mode="json")
    return TrackedRun(directory.name, directory, redacted(config), note, past)


def tracker_thread(make: Callable[[TrackedRun], Any], note: Callable[[str], None] = lambda _: None) -> TrackerThread:
    """Return the thread of a tracker that is called `mine`."""
    return TrackerThread("mine", cast("TrackerFactory", make), tracked_run(Path("runs/mine"), note=note))


def step_record(step: int, shift: float = 0.0) -> Record:
    """Make a record with every form of value: a number, a histogram, a list of age buckets."""
    return {
        "step": step,
        "policy_version": step,
        "tokens/trained": 100,
        "time_s": 2.0 * step + shift,
        "tokens/trained_total": 100 * step,
        "loss": 1 / step + shift,
        "token_age/histogram": [80, 15, 5],
        "by_age/ratio": [1.0, 0.97, None, None, 1.2 + shift, None, None],
    }


def evaluation_record(version: int, accuracy: float, late: float = 0.5) -> Record:
    return {
        "step": version,
        "policy_version": version,
        "time_s": 2.0 * version + late,
        "eval/held_out/accuracy": accuracy,
        "eval/held_out/problems": 64,
    }


def sample_of(step: int) -> SampledEpisode:
    return SampledEpisode(
        fate="trained",
        step=step,
        group_id=7,
        sample=0,
        problem_id="4c81b2de2c0b",
        prompt="2 + 2 =",
        response=f"5, said step {step}",
        answer="4",
        reward=0.0,
        unshaped_reward=0.0,
        parts={"correct": 0.0, "format": 1.0},
        advantage=-0.5,
        length=2,
        oldest_version=step - 2,
        newest_version=step - 1,
        truncated=False,
    )
