"""Hold what the controller knows at one instant: with it and the trainer's state, a run goes on from there."""

from msgspec import Struct

from arl.rollout.failure_window import WindowState
from arl.rollout.problem_queue import Attempt
from arl.types import Count, TrajectoryGroup, Turn


class RunningGroup(Struct, frozen=True):
    """Hold a group in flight, with what the engine had said in each of its episodes."""

    group_id: Count
    attempt: Attempt
    dispatch_version: Count
    dispatch_time: float  # clock seconds
    deadline: Count  # the last version that may train it
    journals: tuple[tuple[Turn, ...], ...]  # (G,); none before its first token
    ended_tokens: Count = 0  # sampled by those of its episodes that have ended


class ControllerState(Struct, frozen=True, kw_only=True):
    """Hold everything that a controller restores; see Controller.state."""

    version: Count  # steps finished by the trainer
    loaded_version: Count  # what the engines resume with
    admitted: Count = 0  # groups so far: the group_id of the next one
    trained: Count = 0
    tokens_trained: Count = 0  # loss tokens
    lost: dict[str, Count] = {}  # fate -> groups
    restarted_tokens: Count = 0  # see Ledger
    position: Count = 0  # in the order of problems
    num_problems: Count = 0  # admitted so far
    requeued: tuple[Attempt, ...] = ()  # put back in line
    set_aside: tuple[Attempt, ...] = ()  # for a long round, with rollout.tail_batching
    is_long_round: bool = False
    failures: WindowState = WindowState()
    running: tuple[RunningGroup, ...] = ()  # in the order of their admission
    buffered: tuple[tuple[Count, TrajectoryGroup], ...] = ()  # (deadline, group), in the buffer's order

    @property
    def outstanding(self) -> list[tuple[int, int]]:
        """Return dispatch version and deadline of each group that was admitted and is neither trained nor lost."""
        finished = [(group.dispatch_version, due) for due, group in self.buffered]
        unfinished = [(group.dispatch_version, group.deadline) for group in self.running]
        return finished + unfinished
