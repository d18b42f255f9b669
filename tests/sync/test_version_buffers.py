"""Two buffers serve a broadcast: no version is overwritten that is being sent, or that engines may ask for."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from arl.errors import TrainerError
from arl.sync.buckets import TensorSpec
from arl.sync.targets import BroadcastTarget
from arl.sync.version_buffers import LentBuckets, VersionBuffers
from tests.examples import examples

SPECS = [TensorSpec("a", "float32", (3,)), TensorSpec("b", "float32", (4,))]
AT_ONCE = 0.0


class Schedule(RuleBasedStateMachine):
    """Let a trainer, a controller, a router and its engines act in any order that their code allows.

    Router and engines: an update or the fill of a restarted engine holds the lock while it is sent; an update takes the
    place of the last one when it gets the lock; each sends the version that is the last one then. A send to an engine
    that is lost may hang for a while. The controller asks for the next version when an update is complete.
    """

    def __init__(self) -> None:
        super().__init__()
        self.target = BroadcastTarget(bucket_bytes=12)
        self.trained = 0
        self.written = 0  # by the publisher
        self.handed_out: int | None = None  # claimed, and not yet taken by the router
        self.newest: int | None = None  # the router's last update
        self.locked_by: LentBuckets | None = None  # what an update or a fill sends under the lock
        self.hanging: list[LentBuckets] = []  # sends to engines that are lost
        self.is_updating = False
        self.addresses: set[int] = set()

    @rule()
    def step_and_snapshot(self) -> None:
        """A buffer is free, unless a swap or a hanging send outlasts a step; then the trainer waits."""
        try:
            flats = self.target.reserve(self.trained + 1, SPECS, AT_ONCE)
        except TrainerError:
            assert self.hanging or self.locked_by is not None or self.handed_out is not None
            return
        self.trained += 1
        for flat in flats:
            self.addresses.add(flat.data_ptr())
            flat.view(torch.float32).fill_(self.trained)

    @precondition(lambda self: self.written < self.trained)
    @rule()
    def publisher_writes_the_newest(self) -> None:
        with self.target.buffers.reading(self.trained) as is_there:
            assert is_there, "nothing newer could have taken its place"
            self.target.write(self.trained, {})
        self.written = self.trained

    @precondition(lambda self: not self.is_updating and self.handed_out is None)
    @rule()
    def controller_asks_for_a_newer_version(self) -> None:
        wanted = (self.newest or 0) + 1
        if self.written < wanted or self.written < self.trained:
            return  # it waits for the publisher
        self.handed_out = self.target.buffers.claim(wanted, AT_ONCE)
        assert self.handed_out == self.written

    @precondition(lambda self: self.handed_out is not None and self.locked_by is None)
    @rule()
    def update_gets_the_lock_and_is_sent(self) -> None:
        self.newest = self.handed_out
        self.handed_out = None
        assert self.newest is not None
        self.locked_by = self.target.buffers.lend(self.newest)
        self.is_updating = True

    @precondition(lambda self: self.newest is not None and self.locked_by is None)
    @rule()
    def restarted_engine_is_filled(self) -> None:
        assert self.newest is not None
        self.locked_by = self.target.buffers.lend(self.newest)

    @precondition(lambda self: self.locked_by is not None)
    @rule(is_lost=st.booleans())
    def send_ends(self, is_lost: bool) -> None:
        assert self.locked_by is not None
        if is_lost:
            self.hanging.append(self.locked_by)
        self.locked_by = None
        self.is_updating = False

    @precondition(lambda self: bool(self.hanging))
    @rule()
    def hanging_send_breaks_off(self) -> None:
        self.hanging.pop()

    @invariant()
    def what_is_sent_is_whole(self) -> None:
        if self.locked_by is not None:
            assert {float(x) for flat in self.locked_by for x in flat.view(torch.float32)} == {float(self.newest or 0)}
        for lent in self.hanging:
            assert len({float(x) for flat in lent for x in flat.view(torch.float32)}) == 1

    @invariant()
    def memory_is_used_again(self) -> None:
        assert len(self.addresses) <= 4  # two versions of two buckets


Schedule.TestCase.settings = settings(examples(2), stateful_step_count=40)
TestSchedule = Schedule.TestCase


def test_where_none_may_be_skipped_a_version_that_waits_is_kept() -> None:
    kept = VersionBuffers(2, lambda: [torch.zeros(1)], keeps_waiting=True)
    kept.reserve(1, AT_ONCE)
    with kept.reading(1):
        kept.reserve(2, AT_ONCE)
        with pytest.raises(TrainerError, match="still need the versions 1, 2"):
            kept.reserve(3, AT_ONCE)
    kept.reserve(3, AT_ONCE)
