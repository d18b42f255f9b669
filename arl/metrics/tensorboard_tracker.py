"""Mirror metrics.jsonl to TensorBoard: `output: {trackers: [tensorboard]}`, then `tensorboard --logdir runs`.

Steps are policy versions: an evaluation is shown at the version that it measured. A resumed run writes another event
file, whose start makes TensorBoard discard what came after the checkpoint.
"""

import time
from collections.abc import Sequence

import numpy as np

from arl.metrics.base import TrackedRun, chart_values
from arl.metrics.names import Record, number
from arl.metrics.sampled_episode import SampledEpisode, facts, title

FOLDER = "tensorboard"


class TensorboardTracker:
    """Implement Tracker and SampleTracker."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter  # importing torch takes seconds

        steps = [number(record, "policy_version") for record in run.past if "tokens/trained" in record]
        seconds = [number(record, "time_s") for record in run.past]
        self._writer = SummaryWriter(str(run.directory / FOLDER), purge_step=int(max(steps)) + 1 if steps else None)
        self._start = time.time() - max(seconds, default=0.0)

    def log(self, record: Record) -> None:
        """See Tracker."""
        version = int(number(record, "policy_version"))
        at = self._start + number(record, "time_s")
        for name, value in chart_values(record):
            if isinstance(value, list):  # how many have age 0, 1, …
                ages = np.repeat(np.arange(len(value)), value)
                edges = np.arange(len(value) + 1) - 0.5
                if len(ages):
                    self._writer.add_histogram(name, ages, version, edges, at)
            else:
                self._writer.add_scalar(name, value, version, at)
        self._writer.flush()

    def log_samples(self, step: int, samples: Sequence[SampledEpisode]) -> None:
        """See SampleTracker."""
        for place, sample in enumerate(samples):
            text = "\n\n".join([title(sample), sample.prompt, sample.response, facts(sample)])
            indented = [f"    {line}" for line in text.splitlines()]  # markdown shows it as is
            self._writer.add_text(f"samples/{place}", "\n".join(indented), step)
        self._writer.flush()

    def close(self) -> None:
        """See Tracker."""
        self._writer.close()
