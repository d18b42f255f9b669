"""What the controller knows at one instant: with it and the trainer's state, a run goes on from there."""

from msgspec import Struct

from arl.types import Problem, TrajectoryGroup, Turn


class RunningGroup(Struct, frozen=True):
    """A group in flight, with what the engine had said in each of its episodes."""

    group_id: int
    problem: Problem
    dispatch_version: int
    dispatch_time: float
    deadline: int
    journals: tuple[tuple[Turn, ...], ...]  # (G,); none before its first token


class ControllerState(Struct, frozen=True):
    version: int  # steps finished by the trainer
    loaded_version: int  # what the engines resume with
    admitted: int  # groups so far: the next one's group_id
    trained: int
    lost: dict[str, int]  # fate -> groups
    requeues: dict[str, int]  # problem id -> times put back
    failures_in_a_row: int
    rejects_in_a_row: int
    position: int  # of the problem order
    put_back: tuple[Problem, ...]
    running: tuple[RunningGroup, ...]  # in the order of their admission
    buffered: tuple[tuple[int, TrajectoryGroup], ...]  # (deadline, group), in the buffer's order
