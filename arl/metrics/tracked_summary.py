"""Sum up a run for trackers: its best and final evaluation, the cost of a target, throughput, age, fates of groups.

record ─► VersionAxes ─► axis/step, axis/tokens, axis/time_s: the same three for steps and evaluations
       └► TrackedSummary ─► best/…, final/…, target/…

An evaluation measures a version, and its record may come many steps later. Both therefore place it where its version
was made. Whatever was not measured is absent.
"""

from collections.abc import Sequence

from arl.config.run_section import Target
from arl.metrics.names import OF_EVALUATION, Record, number

TOKENS = "tokens/trained_total"
ACCURACY = "/accuracy"
LOST = ("failed", "rejected", "dropped")
AXIS_STEP = "axis/step"
AXIS_TOKENS = "axis/tokens"
AXIS_TIME = "axis/time_s"


def accuracies(record: Record) -> dict[str, float]:
    """Map each suite whose evaluation the record holds to its accuracy; empty for a training step."""
    found = {}
    for name in record:
        if name.startswith(OF_EVALUATION) and name.endswith(ACCURACY):
            suite = name.removeprefix(OF_EVALUATION).removesuffix(ACCURACY)
            found[suite] = number(record, name)
    return found


class VersionAxes:
    """Remember when each version was made, and how many tokens had been trained by then."""

    def __init__(self) -> None:
        self._made = {0: {AXIS_TOKENS: 0.0, AXIS_TIME: 0.0}}  # version -> its place

    def place(self, record: Record) -> dict[str, float]:
        """Return the place of the version that `record` is about; records of steps come before their evaluations."""
        version = int(number(record, "policy_version"))
        if TOKENS in record:
            self._made[version] = {
                AXIS_TOKENS: number(record, TOKENS),
                AXIS_TIME: number(record, "time_s"),
            }
        made = self._made.get(version, {})
        return {AXIS_STEP: version, **made}


class TrackedSummary:
    """Keep the summary of a run, record by record.

    >>> summary = TrackedSummary(None)
    >>> sorted(summary.add({"policy_version": 4, "eval/held_out/accuracy": 0.5}, {}))
    ['best/held_out/accuracy', 'best/held_out/step', 'final/held_out/accuracy', 'final/held_out/step']
    """

    def __init__(self, target: Target | None) -> None:
        self._target = target
        self._values: dict[str, float] = {}
        self._tokens = 0  # with an age
        self._ages = 0.0  # sum over them
        self._groups_trained = 0

    def add(self, record: Record, place: dict[str, float]) -> dict[str, float]:
        """Take a record, placed by VersionAxes; return the values that it has changed."""
        changed: dict[str, float] = {}
        version = int(number(record, "policy_version"))
        for suite, accuracy in accuracies(record).items():
            changed |= self._evaluated(suite, version, accuracy)
            changed |= self._reached(suite, accuracy, version, place)
        if TOKENS in record:
            changed |= self._stepped(record)
        self._values |= changed
        return changed

    def _evaluated(self, suite: str, version: int, accuracy: float) -> dict[str, float]:
        """Compare an evaluation with the best one, of equals the earliest, and with that of the newest version."""
        found: dict[str, float] = {}
        best = self._values.get(f"best/{suite}/accuracy")
        best_step = self._values.get(f"best/{suite}/step", 0)
        newest = self._values.get(f"final/{suite}/step", 0)
        if best is None or (accuracy, -version) > (best, -best_step):
            found[f"best/{suite}/accuracy"] = accuracy
            found[f"best/{suite}/step"] = version
        if version >= newest:
            found[f"final/{suite}/accuracy"] = accuracy
            found[f"final/{suite}/step"] = version
        return found

    def _reached(self, suite: str, accuracy: float, version: int, place: dict[str, float]) -> dict[str, float]:
        """Return the cost of the target, if this version is the first one that has reached it."""
        target = self._target
        if target is None or suite != target.suite or accuracy < target.accuracy:
            return {}
        if version >= self._values.get("target/step", version + 1):
            return {}
        costs = {"target/step": float(version)}
        for axis in (AXIS_TOKENS, AXIS_TIME):
            if axis in place:
                costs[axis.replace("axis/", "target/")] = place[axis]
        return costs

    def _stepped(self, record: Record) -> dict[str, float]:
        """Sum up everything but evaluations."""
        tokens = number(record, TOKENS)
        seconds = number(record, "time_s")
        changed = {
            "final/step": number(record, "step"),
            "final/tokens_trained": tokens,
            "final/time_s": seconds,
        }
        if seconds > 0:
            changed["final/tokens_per_s"] = tokens / seconds
        ages = _counts(record, "token_age/histogram")
        self._tokens += sum(ages)
        self._ages += sum(age * count for age, count in enumerate(ages))
        if self._tokens:
            changed["final/token_age_mean"] = self._ages / self._tokens
        self._groups_trained += sum(_counts(record, "dispatch_age/histogram"))
        changed["final/groups_trained"] = self._groups_trained
        fates = {f"groups/{fate}": f"final/groups_{fate}" for fate in LOST}
        fates["audit/groups_in_flight"] = "final/groups_in_flight"
        for metric, name in fates.items():
            if metric in record:
                changed[name] = number(record, metric)
        return changed


def _counts(record: Record, name: str) -> Sequence[int]:
    found = record.get(name, [])
    assert isinstance(found, list)
    return [count for count in found if isinstance(count, int)]
