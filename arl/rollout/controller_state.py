"""Hold what the controller knows at one instant: with it and the trainer's state, a run goes on from there."""

from msgspec import Struct

from arl.rollout.failure_window import WindowState
from arl.rollout.problem_queue import Attempt
from arl.types import TrajectoryGroup, Turn


class RunningGroup(Struct, frozen=True):
    """Hold a group in flight, with what the engine had said in each of its episodes."""

    group_id: int
    attempt: Attempt
    dispatch_version: int
    dispatch_time: float  # clock seconds
    deadline: int  # the last version that may train it
    journals: tuple[tuple[Turn, ...], ...]  # (G,); none before its first token
    ended_tokens: int = 0  # sampled by those of its episodes that have ended


class ControllerState(Struct, frozen=True, kw_only=True):
    """Hold everything that a controller restores; see Controller.state."""

    version: int  # steps finished by the trainer
    loaded_version: int  # what the engines resume with
    admitted: int = 0  # groups so far: the group_id of the next one
    trained: int = 0
    tokens_trained: int = 0  # loss tokens
    lost: dict[str, int] = {}  # fate -> groups
    restarted_tokens: int = 0  # see Ledger
    position: int = 0  # in the order of problems
    num_problems: int = 0  # admitted so far
    requeued: tuple[Attempt, ...] = ()  # put back in line
    set_aside: tuple[Attempt, ...] = ()  # for a long round, with rollout.tail_batching
    is_long_round: bool = False
    failures: WindowState = WindowState()
    running: tuple[RunningGroup, ...] = ()  # in the order of their admission
    buffered: tuple[tuple[int, TrajectoryGroup], ...] = ()  # (deadline, group), in the buffer's order

    @property
    def outstanding(self) -> list[tuple[int, int]]:
        """Return dispatch version and deadline of each group that was admitted and is neither trained nor lost."""
        finished = [(group.dispatch_version, due) for due, group in self.buffered]
        unfinished = [(group.dispatch_version, group.deadline) for group in self.running]
        return finished + unfinished
