"""Join groups as an engine does: several callers at the same time, and callers that wait no longer."""

import threading
from queue import Queue

import pytest
import torch

from arl.errors import EngineError
from arl.launch.address import LOOPBACK, free_listener
from arl.sync.process_group import Group, Joining, Receiver
from arl.sync.stores import reach_store, serve_store
from arl.sync.weight_messages import InitGroup

SECONDS = 20.0


def request(port: int) -> InitGroup:
    return InitGroup(LOOPBACK, port, rank_offset=1, world_size=2, group_name="one", backend="gloo")


def broadcast_until_it_breaks(rank_0: Group) -> None:
    """Send until the other rank's end of the connection is closed, which another thread does."""
    while True:
        rank_0.broadcast(torch.ones(1 << 20))


def test_of_those_who_join_one_name_at_the_same_time_one_succeeds_and_the_others_connect_to_nothing() -> None:
    end = serve_store(LOOPBACK, SECONDS)
    receiver = Receiver(SECONDS)
    results: Queue[str] = Queue()

    def join() -> None:
        try:
            receiver.join(request(end.port), Joining())
            results.put("joined")
        except EngineError as error:
            results.put(str(error))

    for _ in range(3):
        threading.Thread(target=join, daemon=True).start()
    for _ in range(2):  # rank 0 is not there yet, so that nobody can have joined
        assert "group one: it is being joined already" in results.get(timeout=SECONDS / 2)
    rank_0 = Group(end, "one", 0, 2, "gloo", SECONDS)
    assert results.get(timeout=SECONDS) == "joined"
    with pytest.raises(EngineError, match="group one: it is joined already"):
        receiver.join(request(end.port), Joining())
    receiver.leave("one")
    rank_0.close()


@pytest.mark.parametrize("host", [LOOPBACK, "nowhere.invalid", "a..b", "a\0b"])
def test_an_address_where_nobody_listens_is_one_line_and_leaves_nothing_in_the_log(
    host: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Torch would log each attempt with the frames of its C++."""
    with free_listener(LOOPBACK) as listener:
        port = listener.getsockname()[1]
    asked = InitGroup(host, port, rank_offset=1, world_size=2, group_name="one", backend="gloo")
    with pytest.raises(EngineError, match=rf"group one: it cannot be joined \(nobody answers at .*:{port}: ") as raised:
        Receiver(0.2).join(asked, Joining())
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_a_store_that_is_reached_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    end = serve_store(LOOPBACK, SECONDS)
    reached = reach_store(LOOPBACK, end.port, SECONDS)
    reached.store.set("key", "value")
    assert end.store.get("key") == b"value"
    assert capfd.readouterr() == ("", "")


def test_a_name_is_free_again_when_nobody_answers() -> None:
    end = serve_store(LOOPBACK, SECONDS)
    impatient = Receiver(0.1)
    for _ in range(2):
        with pytest.raises(EngineError, match="group one: it cannot be joined"):
            impatient.join(request(end.port), Joining())
    end.close()


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_group_that_is_given_up_is_closed_and_its_name_is_free(is_joined: bool) -> None:
    end = serve_store(LOOPBACK, SECONDS)
    receiver = Receiver(SECONDS)
    joining = Joining()
    made: Queue[Group] = Queue()
    threading.Thread(target=lambda: made.put(Group(end, "one", 0, 2, "gloo", SECONDS)), daemon=True).start()
    if is_joined:
        receiver.join(request(end.port), joining)
        receiver.give_up(joining)
    else:
        receiver.give_up(joining)
        with pytest.raises(EngineError, match="group one: it was joined too late"):
            receiver.join(request(end.port), joining)
    rank_0 = made.get(timeout=SECONDS)
    with pytest.raises(RuntimeError, match="by peer"):
        broadcast_until_it_breaks(rank_0)
    with pytest.raises(EngineError, match=r"group one is not one of \[\]"):
        receiver.leave("one")
