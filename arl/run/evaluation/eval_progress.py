"""Show how far an evaluation is: episodes, score so far, tokens a second."""

from collections.abc import Collection
from time import monotonic

from arl.metrics.console import ConsoleDisplay
from arl.run.evaluation.sample import Sample
from arl.run.evaluation.suite import Suite

LINE_SECONDS = 10.0  # between two lines, where no bar can be drawn


class EvalProgress:
    """Count samples as they are scored.

    Args:
        display: of the command.
        suite: that is evaluated.
        done: samples of an interrupted evaluation.
    """

    def __init__(self, display: ConsoleDisplay, suite: Suite, done: Collection[Sample]) -> None:
        self._display = display
        self._total = len(suite.problems) * suite.sampling.samples
        self._name = suite.name
        self._count = len(done)
        self._correct = sum(sample.correct for sample in done)
        self._tokens = 0  # sampled here
        self._began = monotonic()
        self._last_line = -LINE_SECONDS  # long ago
        display.begin(suite.name, self._total)
        if done:
            display.note(f"{suite.name}: {len(done):,} of {self._total:,} episodes are kept from before")

    def add(self, sample: Sample) -> None:
        """Count a sample that has just been scored."""
        self._count += 1
        self._correct += sample.correct
        self._tokens += sample.num_tokens

    def show(self) -> None:
        """Update the bar; without a terminal, print a line every few seconds."""
        seconds = monotonic() - self._began
        accuracy = self._correct / max(self._count, 1)
        rate = self._tokens / max(seconds, 1e-9)
        is_due = monotonic() - self._last_line >= LINE_SECONDS
        if not (self._display.is_live or is_due):
            return
        self._last_line = monotonic()
        episodes = f"{self._count:,} of {self._total:,} episodes"
        self._display.advance(
            completed=self._count,
            detail=f"{self._name}: {episodes}, {accuracy:.3f} right, {rate:,.0f} tok/s",
        )
