"""Rank 0's threads broadcast to engines that join, each in a group of its own; queues stand for the controller."""

from queue import Queue

import torch

from arl.sync.broadcast import BroadcastTarget, GroupRequest, start_broadcast_threads
from arl.sync.buckets import make_buckets
from arl.sync.group_sender import Rendezvous
from arl.sync.loading import specs_of
from arl.sync.process_group import Receiver
from tests.sync.sender import publish

HOST = "127.0.0.1"
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


class Controller:
    """Hold the links of all threads by the name of their group; the listener's is `listener`."""

    def __init__(self, target: BroadcastTarget, *groups: str, seconds: float = SECONDS) -> None:
        self.listener = QueueLink()
        self.links = {group: QueueLink() for group in groups}
        start_broadcast_threads(target, self._connect, HOST, seconds)

    def _connect(self, group: str | None) -> QueueLink:
        return self.listener if group is None else self.links[group]

    def open(self, group: str) -> Rendezvous:
        self.listener.requests.put(GroupRequest(group, world_size=2))
        return self.links[group].rendezvous.get(timeout=SECONDS)


def join(group: str, at: Rendezvous, seconds: float = SECONDS) -> Receiver:
    receiver = Receiver(seconds)
    receiver.join(group, at.host, at.port, 1, 2, at.backend)
    return receiver


def receive(receiver: Receiver, group: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for bucket in make_buckets(specs_of(state), BUCKET_BYTES):
        receiver.receive(group, bucket)
    return receiver.take(group)


def test_each_engine_receives_the_version_that_it_asks_for_and_its_thread_ends_when_it_leaves() -> None:
    target = BroadcastTarget(BUCKET_BYTES)
    published = {version: {name: torch.randn(20) for name in "abc"} for version in (1, 2)}
    for version, state in published.items():
        publish(target, BUCKET_BYTES, version, state)
    controller = Controller(target, "first", "second")
    for group, version in (("first", 2), ("second", 1)):
        receiver = join(group, controller.open(group))
        link = controller.links[group]
        link.versions.put(version)
        received = receive(receiver, group, published[version])
        assert link.answers.get(timeout=SECONDS) == ""
        assert received.keys() == published[version].keys()
        assert all(torch.equal(received[name], tensor) for name, tensor in published[version].items())
        link.versions.put(None)
        assert link.closed.get(timeout=SECONDS)
    controller.listener.requests.put(None)
