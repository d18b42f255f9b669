"""Start the lanes of a worker, say which of them is for what, and end them with all that they have left running.

front     makes the calls as they come
aside     up to four, each with a call that takes long
in turn   makes calls that take long and have no place aside, one after the other
"""

import os
import select
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from arl.reward.grading import RewardCallable
from arl.reward.lane import Lane
from arl.reward.lane_process import LIMITS_LOWERED, Private
from arl.reward.leftovers import LAST_PATIENCE, PATIENCE, children_of, kill_children, reap_children
from arl.reward.limits import LimitWatch
from arl.reward.messages import RewardCall

MOST_ASIDE = 4  # lanes of a worker that go on aside
FORK_PAUSE = 0.1  # seconds between two tries to start a lane
FORK_PATIENCE = 1.0  # seconds of such tries while calls run, one of which may have taken all processes


class Lanes:
    """Hold the lanes of one worker. They are started when calls need them.

    Args:
        functions: that they call.
        memory_gb: that each may allocate beyond what the worker holds.
        controller: the socket on which the worker gets calls, which no lane may have.
        selector: waits for the worker; its data is called without arguments.
        on_event: is called with a lane that can be read, or written where it wants that.
    """

    def __init__(
        self,
        functions: Sequence[RewardCallable],
        memory_gb: float,
        controller: socket.socket,
        selector: selectors.BaseSelector,
        on_event: Callable[[Lane], None],
    ) -> None:
        self._functions = functions
        self._memory_gb = memory_gb
        self._controller = controller
        self._selector = selector
        self._on_event = on_event
        self.front: Lane | None = None
        self.aside: list[Lane] = []
        self.in_turn: Lane | None = None
        self._limits = LimitWatch()
        self._helpers = children_of(os.getpid())  # what the functions have started before any call

    def __iter__(self) -> Iterator[Lane]:
        lanes = (self.front, *self.aside, self.in_turn)
        return iter([lane for lane in lanes if lane is not None])

    @property
    def has_place_aside(self) -> bool:
        """Return whether one more may go on aside."""
        return len(self.aside) < MOST_ASIDE

    def start_front(self) -> None:
        """Start the front lane, of which there is none. Raises what `_start` raises."""
        self.front = self._start()

    def start_aside(self, call: RewardCall) -> None:
        """Start a lane that makes one call aside. Raises what `_start` raises."""
        lane = self._start()
        lane.make_nice()
        self.aside.append(lane)
        self.add(lane, call)

    def start_in_turn(self, call: RewardCall) -> None:
        """Start the lane in which calls take turns, of which there is none. Raises what `_start` raises."""
        self.in_turn = self._start()
        self.in_turn.make_nice()
        self.add(self.in_turn, call)

    def leave_front_aside(self) -> None:
        """Let the front lane go on aside."""
        assert self.front is not None
        self.front.make_nice()
        self.aside.append(self.front)
        self.front = None

    def add(self, lane: Lane, call: RewardCall) -> None:
        """Have a lane make a further call."""
        lane.add(call)
        self.watch(lane)

    def watch(self, lane: Lane) -> None:
        """Wait until it can be read, and until it can be written if a part of a call is not sent yet."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if lane.wants_to_send else 0)
        self._selector.modify(lane.connection, events, lambda: self._on_event(lane))

    def discard(self, lane: Lane) -> None:
        """End a lane with what it has started."""
        self._selector.unregister(lane.connection)
        if lane is self.front:
            self.front = None
        elif lane is self.in_turn:
            self.in_turn = None
        else:
            self.aside.remove(lane)
        lane.kill()
        self._kill_leftovers()

    def end(self) -> None:
        """End every lane with what it has started."""
        for lane in self:
            lane.kill()
        self._kill_leftovers(LAST_PATIENCE)

    def _kill_leftovers(self, patience: float = PATIENCE) -> None:
        """Kill and reap what lanes that are not in use any more have left to this process."""
        keepers = [lane.keeper for lane in self]
        spare = [*self._helpers, *keepers]
        kill_children(os.getpid(), spare, patience)
        reap_children(spare)

    def _start(self) -> Lane:
        """Start a lane.

        Raises:
            SystemExit, OSError: see `_fork`.
        """
        lane = self._fork()
        self._selector.register(lane.connection, selectors.EVENT_READ, lambda: self._on_event(lane))
        return lane

    def _fork(self) -> Lane:
        """Start the processes of a lane. If there are none to be had, wait until there are.

        Unblocked by the clock, or by the end of the connection to the controller.

        Raises:
            SystemExit: what it starts would fail.
            OSError: the connection has ended, or calls run: one of them may have taken all processes. This worker then
                ends with everything that it has started, and the controller makes the calls again, alone.
        """
        hang_up = select.poll()
        hang_up.register(self._controller, select.POLLRDHUP)
        began = time.monotonic()
        while True:
            if lowered := self._limits.lowered():
                raise SystemExit(f"{LIMITS_LOWERED} ({', '.join(lowered)}): this reward worker ends, and is replaced")
            connections = (lane.connection for lane in self)
            private: list[Private] = [self._selector, self._controller, *connections]
            try:
                return Lane.fork(self._functions, self._memory_gb, private, self._limits)
            except OSError:
                self._kill_leftovers()
                a_call_runs = any(lane.calls for lane in self)
                if a_call_runs and time.monotonic() - began > FORK_PATIENCE:
                    raise
                if hang_up.poll(FORK_PAUSE * 1000):
                    raise
