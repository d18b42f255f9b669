"""Hold what the recorder knows: what it reads of a run, what it counts and a checkpoint keeps, its newest records."""

from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from arl.metrics.audit import Selection
from arl.metrics.batch import EndedGroups
from arl.metrics.names import OF_EVALUATION, Record, number
from arl.types import Count, SwapReport

KEPT = 100  # records in memory; one takes 14 kB
ACCURACY = "/accuracy"


class Meters(Struct, frozen=True, kw_only=True):
    """Hold what the recorder reads of a run at every step."""

    # Counted in this process since it began.
    busy_seconds: float = 0.0  # of the engines
    reward_wait_seconds: float = 0.0  # of groups, from the end of their last episode to their grades
    graded_groups: int = 0  # of which these are the sum
    gate_seconds: float = 0.0  # in which admission was held back and no request was open
    restarts: int = 0  # of engines
    # Since the start of the run.
    admitted: int = 0  # groups
    restarted_tokens: int = 0  # of ended episodes that a resumed run began anew
    epochs: float = 0.0  # over the training problems
    # Now.
    open_tokens: int = 0  # sampled by the ended episodes of groups that run
    loaded_version: int = 0  # of the engines

    def counted_since(self, other: "Meters") -> "Meters":
        """Return what this process has counted since `other` was read."""
        return Meters(
            busy_seconds=self.busy_seconds - other.busy_seconds,
            reward_wait_seconds=self.reward_wait_seconds - other.reward_wait_seconds,
            graded_groups=self.graded_groups - other.graded_groups,
            gate_seconds=self.gate_seconds - other.gate_seconds,
        )


class RecorderState(Struct, kw_only=True):
    """Count what happens in a run. With it and the run's files at one instant, recording goes on from there.

    Times are clock seconds; the clock of a resumed run goes on from the checkpoint.
    """

    start: float  # when training began
    last_step: float  # end of the last step
    # Since the last step.
    since: Meters = Meters()
    num_swaps: int = 0
    paused: float = 0.0  # seconds of these swaps
    recomputed: int = 0  # tokens, because of these swaps
    version_seconds: float = 0.0  # sum over time of the trainer's version − the engines'
    ended: EndedGroups = field(default_factory=EndedGroups)
    # Since the start of the run.
    restarts: int = 0  # of engines, in processes before this one
    tokens_generated: int = 0  # up to the last step
    tokens_trained: int = 0  # likewise
    trained_version: int = 0
    last_swap: SwapReport = SwapReport(0, 0.0, 0.0)
    selection: Selection = field(default_factory=Selection)
    token_ages: dict[Count, Count] = {}  # age -> trained tokens
    num_spanning: int = 0  # trained trajectories that two or more versions have sampled
    # Of files.
    metrics_bytes: int = 0  # size of metrics.jsonl
    trace_bytes: int = 0  # size of trace.json
    num_files: int = 0  # trajectory files


class RunRecords:
    """Keep in memory what a running run needs of its records; all of them are in metrics.jsonl.

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
                found = (int(number(record, "policy_version")), number(record, name))
                self._evaluated.add((suite, found[0]))
                self.evaluations[suite] = max(found, self.evaluations.get(suite, found))

    def has_evaluated(self, suite: str, version: int) -> bool:
        """Return whether there is a record of this evaluation."""
        return (suite, version) in self._evaluated
