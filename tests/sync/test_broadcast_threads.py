"""Rank 0's threads broadcast to engines that join, each in a group of its own; queues stand for the controller."""

from queue import Queue

import torch

from arl.sync.broadcast import BroadcastTarget, GroupRequest, start_broadcast_threads
from arl.sync.buckets import make_buckets
from arl.sync.group_sender import Rendezvous
from arl.sync.loading import specs_of
from arl.sync.process_group import Receiver
from tests.sync.sender import publish

BUCKET_BYTES = 100
SECONDS = 30.0


class QueueLink:
    """Link one thread with the test, which has the other end."""

    def __init__(self) -> None:
        self.requests: Queue[GroupRequest | None] = Queue()
        self.versions: Queue[int | None] = Queue()
        self.rendezvous: Queue[Rendezvous] = Queue()
        self.answers: Queue[str] = Queue()
        self.closed: Queue[bool] = Queue()

    def next_group(self) -> GroupRequest | None:
        return self.requests.get()

    def opened(self, rendezvous: Rendezvous) -> None:
        self.rendezvous.put(rendezvous)

    def next_version(self) -> int | None:
        return self.versions.get()

    def sent(self, error: str = "") -> None:
        self.answers.put(error)

    def close(self) -> None:
        self.closed.put(True)


def test_each_engine_receives_the_version_that_it_asks_for_and_its_thread_ends_when_it_leaves() -> None:
    target = BroadcastTarget(BUCKET_BYTES)
    published = {version: {name: torch.randn(20) for name in "abc"} for version in (1, 2)}
    for version, state in published.items():
        publish(target, BUCKET_BYTES, version, state)
    links = {name: QueueLink() for name in (None, "first", "second")}
    start_broadcast_threads(target, links.__getitem__, "127.0.0.1", SECONDS)
    for group, version in (("first", 2), ("second", 1)):
        link = links[group]
        links[None].requests.put(GroupRequest(group, world_size=2))
        at = link.rendezvous.get(timeout=SECONDS)
        receiver = Receiver(SECONDS)
        receiver.join(group, at.host, at.port, 1, 2, at.backend)
        link.versions.put(version)
        for bucket in make_buckets(specs_of(published[version]), BUCKET_BYTES):
            receiver.receive(group, bucket)
        received = receiver.take(group)
        assert link.answers.get(timeout=SECONDS) == ""
        assert received.keys() == published[version].keys()
        assert all(torch.equal(received[name], tensor) for name, tensor in published[version].items())
        link.versions.put(None)
        assert link.closed.get(timeout=SECONDS)
    links[None].requests.put(None)
