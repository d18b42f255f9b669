"""A lane's answers are judged one by one, however many of them arrive together."""

import os
import socket

import pytest

from arl.launch.frames import frame
from arl.reward.lane import Lane, LaneError
from arl.reward.messages import READY, Answer, RewardCall, Verdict
from arl.types import Problem, Response


def test_an_answer_counts_although_the_next_call_writes_nonsense_behind_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        lane = Lane(os.getpid(), os.getpid(), ours)
        calls = [RewardCall(number, 0, Problem("?"), Response("x")) for number in range(2)]
        for call in calls:
            lane.add(call)
        nonsense = b"\0\0\0\x01garbage"
        theirs.sendall(frame(Answer(READY)) + frame(Answer(0, Verdict(reward=1.0))) + nonsense)
        answers = lane.receive()
        call, verdict, _ = next(answers)
        assert (call, verdict.reward) == (calls[0], 1.0)
        with pytest.raises(LaneError, match="something else wrote to the lane's connection"):
            next(answers)
        assert lane.call == calls[1]
