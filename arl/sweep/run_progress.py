"""Follow a run from its metrics.jsonl while it grows. It only reads, so the run never waits for it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from arl.metrics.names import OF_EVALUATION, Record, number


class MetricsTail:
    """Read the records of a metrics.jsonl that were added since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0  # where the first line begins that was not read yet

    def read(self) -> Iterator[Record]:
        """Yield the numbers of each record whose line is complete; of a file that was cut back, from its beginning."""
        if not os.path.exists(self._path):
            return
        with self._path.open("rb") as file:
            if file.seek(0, 2) < self._offset:
                self._offset = 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written: the next look begins here
                self._offset += len(line)
                record = json.loads(line)
                yield {name: float(value) for name, value in record.items() if isinstance(value, int | float)}


class RunProgress:
    """Hold how far a run is: its step, its last reward and accuracy.

    Args:
        metrics: its metrics.jsonl, which may not exist yet.
        steps: that the run has at most.
        suite: whose accuracy is shown.
    """

    def __init__(self, metrics: Path, steps: int, suite: str) -> None:
        self.steps = steps
        self.step = 0
        self.reward: float | None = None
        self.accuracy: float | None = None
        self._accuracy_name = f"{OF_EVALUATION}{suite}/accuracy"
        self._tail = MetricsTail(metrics)
        self.refresh()

    def refresh(self) -> bool:
        """Read what is new; return whether an evaluation of the suite is among it."""
        evaluated = False
        for record in self._tail.read():
            if self._accuracy_name in record:
                self.accuracy = number(record, self._accuracy_name)
                evaluated = True
            if any(name.startswith(OF_EVALUATION) for name in record):
                continue
            self.step = int(number(record, "step"))
            if "reward/trained_mean" in record:
                self.reward = number(record, "reward/trained_mean")
        return evaluated
