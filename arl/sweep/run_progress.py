"""Follow a run from its metrics.jsonl while it grows. It only reads, so the run never waits for it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from arl.metrics.names import OF_EVALUATION, Record, number
from arl.metrics.record_file import decode_record

TRAINED = "tokens/trained_total"


class MetricsTail:
    """Read the records of a metrics.jsonl that were added since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0  # where the first line begins that was not read yet
        self.was_cut = False  # when it was last read: it is read from its beginning again

    def read(self) -> Iterator[Record]:
        """Yield the numbers of each record whose line is complete.

        A file that was cut back is read from its beginning. If it has grown past the old place since the last look, the
        first line found is the end of one, which is left out.
        """
        self.was_cut = False
        try:
            file = self._path.open("rb")
        except OSError:  # it does not exist yet, or the run itself will say why it cannot go on with it
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            if size < self._offset:
                self._offset = 0
                self.was_cut = True
            file.seek(self._offset)
            for line in self._complete_lines(file):
                if line.startswith(b"{"):
                    record = decode_record(line)
                    yield {name: value for name, value in record.items() if isinstance(value, float)}

    def _complete_lines(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the lines that have an end."""
        while line := file.readline():
            if not line.endswith(b"\n"):
                return  # it is being written: the next look begins here
            self._offset += len(line)
            yield line


class RunProgress:
    """Hold how far a run is: its step, its last reward and accuracy, and how long it will take.

    Args:
        metrics: its metrics.jsonl, which may not exist yet.
        steps: that the run has at most.
        suite: whose accuracy is shown.
        tokens: after which it ends; None: it trains all steps.
        now: seconds of the clock.
    """

    def __init__(self, metrics: Path, steps: int, suite: str, now: float, tokens: int | None = None) -> None:
        self.steps = steps
        self._accuracy_name = f"{OF_EVALUATION}{suite}/accuracy"
        self._tokens = tokens
        self._tokens_trained = 0.0
        self.step = 0
        self.reward: float | None = None
        self.accuracy: float | None = None
        self._tail = MetricsTail(metrics)
        self._began: tuple[float, float] | None = None
        self.refresh(now)
        self._began = None  # what an earlier process trained says nothing about the time

    def refresh(self, now: float) -> bool:
        """Read what is new; return whether an evaluation of the suite is among it."""
        evaluated = False
        for record in self._tail.read():
            if self._accuracy_name in record:
                self.accuracy = number(record, self._accuracy_name)
                evaluated = True
            if any(name.startswith(OF_EVALUATION) for name in record):
                continue
            self._take_step(record)
            if self._began is None:
                self._began = (now, self.share)
        if self._tail.was_cut:  # by the process that goes on with the run: an earlier one trained what is left
            self._began = (now, self.share)
        return evaluated

    def _take_step(self, record: Record) -> None:
        self.step = int(number(record, "step"))
        self._tokens_trained = number(record, TRAINED) if TRAINED in record else 0.0
        if "reward/trained_mean" in record:
            self.reward = number(record, "reward/trained_mean")

    @property
    def share(self) -> float:
        """Return the share of the run that is done, by steps or by tokens, whichever ends it first."""
        by_steps = self.step / self.steps
        by_tokens = self._tokens_trained / self._tokens if self._tokens else 0.0
        return min(max(by_steps, by_tokens), 1.0)

    def seconds_left(self, now: float) -> float | None:
        """Estimate the seconds until its end from what was trained since this process began; None: unknown."""
        if self._began is None:
            return None
        began, share_before = self._began
        done = self.share - share_before
        if done <= 0.0:
            return None
        return (now - began) / done * (1.0 - self.share)
