"""End a run in which too many problems fail or are rejected, whichever ends first.

Problems are numbered in the order of their first admission. A run ends once more than the allowed share of any
`size` consecutive problems has failed. A problem that is still running counts as good until it fails, so the count
within a window only grows, and the verdict depends on which problems fail and never on the order in which groups end.
A rate by time of ending would not do: failures are often quick, and would outrun the successes of their time.

A problem that is tried again keeps its number, and several failures of it count once. Otherwise a few bad problems,
tried again one after the other, would look like a bad run.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from arl.config.recipe import Rollout
from arl.errors import RunError
from arl.rollout.problem_queue import Attempt

FAILED_OF = 64  # problems in a row, in order of admission
REJECTED_OF = 256


class WindowState(Struct, frozen=True):
    """Hold the problems that count against the limits, each by its number and cause."""

    failed: tuple[tuple[int, str], ...] = ()
    rejected: tuple[tuple[int, str], ...] = ()


class FailureWindow:
    """Count marked problems in every window of `size` consecutive numbers.

    >>> window = FailureWindow(size=4, max_share=0.5)  # 3 of any 4 are too many
    >>> window.mark(7, "timeout"), window.mark(0, "no answer"), window.mark(4, "timeout")
    (None, None, None)
    >>> window.mark(6, "timeout")
    [(4, 'timeout'), (6, 'timeout'), (7, 'timeout')]

    Args:
        size: problems in a window.
        max_share: the share of them that may be marked, in [0, 1).
    """

    def __init__(self, size: int, max_share: float) -> None:
        self.size = size
        self.too_many = math.floor(size * max_share + 1e-9) + 1
        self.marked: dict[int, str] = {}  # number -> cause, of the first try that failed

    def mark(self, number: int, cause: str) -> list[tuple[int, str]] | None:
        """Mark problem `number`, and return the first marked problems of a window that has too many, or None."""
        if number in self.marked:
            return None
        self.marked[number] = cause
        near = [item for item in sorted(self.marked.items()) if abs(item[0] - number) < self.size]
        for first in range(len(near) - self.too_many + 1):
            chosen = near[first : first + self.too_many]
            if chosen[-1][0] - chosen[0][0] < self.size:
                return chosen
        return None

    def forget_before(self, oldest: int) -> None:
        """Forget what no window shares any more with problem `oldest` or a later one."""
        self.marked = {number: cause for number, cause in self.marked.items() if number > oldest - self.size}


class FailureLimits:
    """Apply the recipe's two limits: `max_failed_share` and `max_rejected_share`."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._failed = FailureWindow(FAILED_OF, rollout.max_failed_share)
        self._rejected = FailureWindow(REJECTED_OF, rollout.max_rejected_share)

    def count_failure(self, attempt: Attempt, cause: BaseException) -> None:
        """Count a failed group.

        Raises:
            RunError: too many problems failed; the message has the first cause in the order of admission.
        """
        window = self._failed.mark(attempt.number, f"{attempt.problem.id}: {type(cause).__name__}: {cause}")
        if window is None:
            return
        error = RunError(
            f"{len(window)} of {FAILED_OF} problems in order of admission failed, more than rollout.max_failed_share "
            f"{self._rollout.max_failed_share:g} allows; the first, problem {window[0][1]}. "
            "Fix the reward or env, or raise the limit"
        )
        for note in getattr(cause, "__notes__", ()):
            error.add_note(note)
        raise error from cause

    def count_reject(self, attempt: Attempt, rewards: Sequence[float], cause: BaseException | None) -> None:
        """Count a rejected group.

        Args:
            rewards: of its episodes; NaN where there is none.
            cause: what the env raised; None: the filter rejected the group.

        Raises:
            RunError: too many problems were rejected; the message has the first cause in the order of admission.
        """
        who = self._rollout.filter if cause is None else str(cause)
        distinct = sorted({reward for reward in rewards if not math.isnan(reward)})
        window = self._rejected.mark(attempt.number, f"{attempt.problem.id} by {who}, had the rewards {distinct[:5]}")
        if window is None:
            return
        raise RunError(
            f"{len(window)} of {REJECTED_OF} problems in order of admission were rejected, more than "
            f"rollout.max_rejected_share {self._rollout.max_rejected_share:g} allows; the first, problem "
            f"{window[0][1]}. Choose easier or harder problems, another filter, or raise the limit"
        )

    def forget_before(self, oldest: int) -> None:
        """Forget what can no longer matter, because every problem before `oldest` has ended."""
        self._failed.forget_before(oldest)
        self._rejected.forget_before(oldest)

    def state(self) -> WindowState:
        """Return what a checkpoint keeps."""
        return WindowState(*(tuple(sorted(window.marked.items())) for window in (self._failed, self._rejected)))

    def restore(self, state: WindowState) -> None:
        """Go on from a checkpoint."""
        self._failed.marked = dict(state.failed)
        self._rejected.marked = dict(state.rejected)
