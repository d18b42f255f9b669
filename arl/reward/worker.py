"""Run one reward worker process: it imports the reward functions once, and has lanes call them.

    python -m arl.reward.worker SETTINGS            the socket to the controller is file descriptor 0

    calls ─► front lane ─► answered
                 │
                 └ takes long, and other calls wait ─► left behind: it goes on aside, niced, and a new front lane
                       takes the other calls         ├ no place aside: killed, and begun again, in turn with others
                                                     └ deadline passed, or died: killed, tried once more, then error

So a call that hangs delays the others by the short time after which it is left behind, and not by its deadline. That
time adapts: it is five times the median of the calls that were answered, and at least 50 ms. What a call waits for a
core does not count, because on a busy machine every call is slow.

Calls without a place aside take turns in one lane more while there is no other call, each time twice as long. A call
that takes long in front gives way to them and joins them. So one that takes a second is answered although others hang
in every place, whose deadlines may be far.
"""

import contextlib
import math
import os
import selectors
import socket
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec

from arl.config.imports import import_function
from arl.launch.child import adopt_orphans, outlive_parent
from arl.launch.frames import FrameReader, frame, standard_input_socket
from arl.reward.grading import RewardCallable
from arl.reward.lane import Lane, LaneError
from arl.reward.lane_process import freeze_imports
from arl.reward.lanes import Lanes
from arl.reward.messages import READ_BYTES, READY, TRIES, Answer, RewardCall, Settings, Verdict
from arl.reward.patience import Patience
from arl.reward.shared_pools import refuse_shared_pools

BEAT_SECONDS = 0.5  # between two looks at the lanes, at most
MOST_IN_LANE = 16  # calls of the front lane, so that it makes them without a wait in between


class Worker:
    """Distribute the calls of one controller over lanes.

    Args:
        functions: by the index in RewardCall.function.
        controller: the socket on which calls arrive.
    """

    def __init__(self, functions: Sequence[RewardCallable], settings: Settings, controller: socket.socket) -> None:
        self._settings = settings
        self._controller = controller
        self._frames = FrameReader()
        self._waiting: deque[RewardCall] = deque()  # for the front lane
        self._put_off: deque[RewardCall] = deque()  # for a place aside
        self._tries: dict[int, int] = {}  # call id -> failed tries
        self._turns: Counter[int] = Counter()  # call id -> turns that were not long enough
        self._patience = Patience()
        self._selector = selectors.DefaultSelector()
        self._lanes = Lanes(functions, settings.memory_gb, controller, self._selector, self._on_event)
        self._ended = False

    def serve(self) -> None:
        """Serve calls until the controller closes the connection or dies, and kill every lane.

        Consumes calls and answers. Waits for either. Unblocked by them, by a call that is to be left behind, and by a
        call whose deadline passes.
        """
        self._selector.register(self._controller, selectors.EVENT_READ, self._take_calls)
        self._tell(Answer(READY))
        try:
            while not self._ended:
                for key, _ in self._selector.select(self._seconds_to_wait()):
                    on_event: Callable[[], None] = key.data
                    on_event()
                self._keep_time()
                self._start_calls()
        finally:
            self._lanes.end()

    # ---- the controller

    def _take_calls(self) -> None:
        try:
            data = self._controller.recv(READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self._ended = True
        for body in self._frames.feed(data):
            self._waiting.append(msgspec.msgpack.decode(body, type=RewardCall))

    def _tell(self, answer: Answer) -> None:
        try:
            self._controller.sendall(frame(answer))
        except ConnectionError:
            self._ended = True

    # ---- calls

    def _start_calls(self) -> None:
        lanes = self._lanes
        while self._put_off and lanes.has_place_aside:
            lanes.start_aside(self._put_off.popleft())
        if self._put_off and lanes.in_turn is None and self._is_idle:
            lanes.start_in_turn(self._put_off.popleft())
        self._clean_for_suspect()
        if self._waiting and lanes.front is None:
            lanes.start_front()
        while self._waiting and lanes.front is not None and len(lanes.front.calls) < MOST_IN_LANE:
            lanes.add(lanes.front, self._waiting.popleft())

    def _clean_for_suspect(self) -> None:
        """Begin a new front lane for a call that was sent alone, without what earlier calls have left running."""
        front = self._lanes.front
        if self._waiting and self._waiting[0].is_alone and front is not None and not front.calls:
            self._lanes.discard(front)

    def _on_event(self, lane: Lane) -> None:
        if lane.wants_to_send:
            lane.send()
            self._lanes.watch(lane)
        is_front = lane is self._lanes.front
        again = self._waiting if is_front else self._put_off
        try:
            for call, verdict, seconds in lane.receive():
                if verdict.error:
                    self._fail(lane, call, verdict, again)
                    return
                self._succeed(call, verdict, seconds)
                if not is_front:
                    self._lanes.discard(lane)  # it was left behind with one call
                    return
        except LaneError as error:
            self._fail(lane, lane.call, Verdict(error=str(error), is_disturbed=True), again)

    def _succeed(self, call: RewardCall, verdict: Verdict, seconds: float) -> None:
        self._patience.learn(seconds)
        self._forget(call)
        self._tell(Answer(call.id, verdict))

    def _fail(self, lane: Lane, call: RewardCall | None, verdict: Verdict, again: deque[RewardCall]) -> None:
        """Discard the lane of a failed call; the call is tried again in `again`, or the error is the answer.

        Args:
            call: None: the lane died between two calls.
            verdict: with the error.
        """
        others = [other for other in lane.calls if other is not call]
        self._waiting.extendleft(reversed(others))
        self._lanes.discard(lane)
        if call is None:
            return
        self._tries[call.id] = self._tries.get(call.id, 0) + 1
        if self._tries[call.id] < TRIES:
            again.appendleft(call)
            return
        self._forget(call)
        self._tell(Answer(call.id, verdict))

    def _forget(self, call: RewardCall) -> None:
        self._tries.pop(call.id, None)
        self._turns.pop(call.id, None)

    # ---- time

    def _keep_time(self) -> None:
        self._wake_slow_lanes()
        self._fail_late_calls()
        self._end_turn()
        self._leave_slow_call()

    def _wake_slow_lanes(self) -> None:
        """Let lanes go on that take long because a program has stopped them."""
        for lane in self._lanes:
            if lane.call is not None and lane.seconds > self._patience.seconds:
                lane.wake()

    def _fail_late_calls(self) -> None:
        """Fail calls whose deadline has passed."""
        cause = f"no answer in {self._settings.timeout:g} s (deadlines.reward)"
        for lane in self._lanes:
            if lane.call is not None and lane.seconds >= self._settings.timeout:
                self._tell(Answer(lane.call.id))  # it is tried again aside, and this worker lives
                self._fail(lane, lane.call, Verdict(error=cause), again=self._put_off)

    def _end_turn(self) -> None:
        """End the turn of a call if its time has passed and others are put off."""
        lane = self._lanes.in_turn
        if lane is None or lane.call is None:
            return
        if self._seconds_left_of_turn(lane) > 0:
            return
        slow = lane.call
        self._on_event(lane)  # an answer may have come while this process had no core
        if self._lanes.in_turn is lane:
            self._lanes.discard(lane)
            self._turns[slow.id] += 1
            self._put_off.append(slow)

    def _seconds_left_of_turn(self, lane: Lane) -> float:
        """Return how long the call of `lane` may go on; it may without end if no other is put off."""
        if lane.call is None or not lane.is_up or not self._put_off:
            return math.inf
        turn = self._patience.seconds * 2.0 ** self._turns[lane.call.id]
        return lane.seconds_until(turn)

    def _leave_slow_call(self) -> None:
        """Leave the front lane's call behind if it takes long and others wait."""
        front = self._lanes.front
        if front is None or not self._others_wait:
            return
        if front.seconds_until(self._patience.seconds) > 0:
            return
        slow = front.call
        self._on_event(front)  # as above
        if slow is not None and self._lanes.front is front and front.call is slow:
            self._leave_behind(front, slow)

    def _leave_behind(self, front: Lane, call: RewardCall) -> None:
        self._tell(Answer(call.id))
        self._waiting.extendleft(reversed(front.take_back()))
        if self._lanes.has_place_aside:
            self._lanes.leave_front_aside()
        else:
            self._lanes.discard(front)
            self._put_off.append(call)

    @property
    def _others_wait(self) -> bool:
        """Return whether the front lane makes a call, and others wait for it to end; those that are put off do, too."""
        front = self._lanes.front
        if front is None or front.call is None or not front.is_up:
            return False
        return bool(self._waiting or self._put_off) or len(front.calls) > 1 or front.call.is_alone

    @property
    def _is_idle(self) -> bool:
        """Return whether no call waits for the front lane, or is made there."""
        return not self._waiting and (self._lanes.front is None or not self._lanes.front.calls)

    def _seconds_to_wait(self) -> float | None:
        """Return the time to the next deadline, to the end of patience, or to the next reading of the clock.

        None: no call runs.
        """
        left = math.inf
        for lane in self._lanes:
            if lane.call is not None:
                left = min(left, self._settings.timeout - lane.seconds)
                if lane is self._lanes.in_turn:
                    left = min(left, self._seconds_left_of_turn(lane))
                if lane is self._lanes.front and self._others_wait:
                    left = min(left, lane.seconds_until(self._patience.seconds))
        return None if left == math.inf else min(max(left, 0.0), BEAT_SECONDS)


def main() -> None:
    """Serve the functions that the command line names."""
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    controller = standard_input_socket()
    functions = []
    for name in settings.functions:
        function = import_function(name, "reward.function")
        functions.append(function)
        prepare = getattr(function, "prepare", None)
        if prepare is not None:
            prepare()
    refuse_shared_pools()
    freeze_imports()
    adopt_orphans()
    outlive_parent()  # the end of the connection ends this process, which then kills what lanes have started
    Worker(functions, settings, controller).serve()


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(1)
