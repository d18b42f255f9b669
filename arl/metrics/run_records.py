"""Keep in memory what a running run needs of its metrics. A record takes 14 kB, so a long run keeps only the newest.

records ─► newest, sum of the trained tokens, newest evaluation of each suite; all of them are in metrics.jsonl
"""

from collections import deque
from collections.abc import Iterable

from arl.metrics.names import OF_EVALUATION, Record, number

KEPT = 100
ACCURACY = "/accuracy"


class RunRecords:
    """Take the records of a run, one after the other.

    Args:
        past: those of a resumed run.
    """

    def __init__(self, past: Iterable[Record] = ()) -> None:
        self.newest: deque[Record] = deque(maxlen=KEPT)
        self.tokens_trained = 0  # of all steps
        self.evaluations: dict[str, tuple[int, float]] = {}  # suite -> its newest version, and that one's accuracy
        self._evaluated: set[tuple[str, int]] = set()
        for record in past:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take the next record, of a step or of an evaluation."""
        self.newest.append(record)
        if "tokens/trained" in record:
            self.tokens_trained += int(number(record, "tokens/trained"))
        for name in record:
            if name.startswith(OF_EVALUATION) and name.endswith(ACCURACY):
                suite = name.removeprefix(OF_EVALUATION).removesuffix(ACCURACY)
                self._add_accuracy(suite, int(number(record, "policy_version")), number(record, name))

    def _add_accuracy(self, suite: str, version: int, accuracy: float) -> None:
        self._evaluated.add((suite, version))
        found = (version, accuracy)
        self.evaluations[suite] = max(found, self.evaluations.get(suite, found))

    def has_evaluated(self, suite: str, version: int) -> bool:
        """Return whether there is a record of this evaluation."""
        return (suite, version) in self._evaluated
