"""Mirror metrics.jsonl to TensorBoard: `output: {trackers: [tensorboard]}`, then `tensorboard --logdir runs`.

record of a step ─► one event at its step               ┐
evaluation ─► one event at the version that it measured ├─► <run>/tensorboard/events.out.tfevents.*
samples ─► texts                                        ┘

TensorBoard's steps are policy versions, and its relative time is the run's own time, also in virtual time. A resumed
run writes the file anew, from what metrics.jsonl has kept, so no step is in it twice.
"""

import importlib.util
import time
from collections.abc import Sequence
from typing import Any

from arl.errors import RecipeError
from arl.metrics.base import TrackedRun
from arl.metrics.names import OF_EVALUATION, Record, number
from arl.metrics.sampled_episode import SampledEpisode
from arl.metrics.shown_values import shown_values
from arl.metrics.tracked_summary import AXIS_TIME, VersionAxes, accuracies

FOLDER = "tensorboard"
SAMPLES = "samples/"  # begins the tags of texts
STEPS = ("step", "policy_version")  # both are the step of an event, so they need no charts


def require_tensorboard() -> None:
    """Refuse a recipe that names the tracker where the package is missing.

    Raises:
        RecipeError: it is missing; says the command that installs it.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise RecipeError(
            "output.trackers 'tensorboard': the package is not installed; run "
            "`pip install -e '.[tensorboard]'` in arl's source directory, or leave it out"
        )


class TensorboardTracker:
    """Implement Tracker and SampleTracker."""

    def __init__(self, run: TrackedRun) -> None:
        from arl.metrics.event_file import EventFile, event_files, read_events

        directory = run.directory / FOLDER
        seconds = [number(record, "time_s") for record in run.past]
        steps = [number(record, "step") for record in run.past]
        self._axes = VersionAxes()
        self._start = time.time() - max(seconds, default=0.0)
        self._wall_time = self._start  # of the newest event
        self._file = EventFile(directory)
        for record in run.past:
            self.log(record)
        older = event_files(directory)
        last = max(steps, default=0.0)
        for event in read_events(older):
            if event.step <= last and _holds_samples(event):
                self._file.add(event)
        self._file.publish()

    def log(self, record: Record) -> None:
        """See Tracker."""
        seconds = number(record, "time_s")
        made_at = self._axes.place(record).get(AXIS_TIME, seconds)
        self._wall_time = self._start + made_at
        values = {name: value for name, value in shown_values(record) if name not in STEPS}
        if suites := accuracies(record):
            del values["time_s"]  # the tag is the steps' alone
            values |= {f"{OF_EVALUATION}{suite}/time_s": seconds for suite in suites}
        version = int(number(record, "policy_version"))
        self._file.add_values(version, self._wall_time, values)

    def log_samples(self, step: int, samples: Sequence[SampledEpisode]) -> None:
        """See SampleTracker."""
        texts = {f"{SAMPLES}{place}": _markdown(sample) for place, sample in enumerate(samples)}
        self._file.add_texts(step, self._wall_time, texts)

    def close(self) -> None:
        """See Tracker."""
        self._file.close()


def _holds_samples(event: Any) -> bool:
    return any(value.tag.startswith(SAMPLES) for value in event.summary.value)


def _markdown(sample: SampledEpisode) -> str:
    """Write a sample so that TensorBoard shows its text as it is."""
    from arl.metrics.sample_panels import facts, title

    parts = {
        "sample": title(sample),
        "prompt": sample.prompt,
        "response": sample.response,
        "facts": facts(sample),
    }
    return "\n\n".join(f"{name}\n\n{_verbatim(text)}" for name, text in parts.items())


def _verbatim(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
