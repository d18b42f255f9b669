"""Join groups as an engine does: several callers at the same time, and callers that wait no longer."""

import pytest
import torch

from arl.errors import EngineError
from arl.launch.address import LOOPBACK, free_listener
from arl.sync.process_group import Group, Receiver
from arl.sync.stores import reach_store, serve_store
from arl.sync.weight_messages import InitGroup

SECONDS = 20.0


def request(port: int) -> InitGroup:
    return InitGroup(LOOPBACK, port, rank_offset=1, world_size=2, group_name="one", backend="gloo")


def broadcast_until_it_breaks(rank_0: Group) -> None:
    """Send until the other rank's end of the connection is closed, which another thread does."""
    while True:
        rank_0.broadcast(torch.ones(1 << 20))


@pytest.mark.parametrize("host", [LOOPBACK, "nowhere.invalid", "a..b", "a\0b"])
def test_an_address_where_nobody_listens_is_one_line_and_leaves_nothing_in_the_log(
    host: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Torch would log each attempt with the frames of its C++."""
    with free_listener(LOOPBACK) as listener:
        port = listener.getsockname()[1]
    asked = InitGroup(host, port, rank_offset=1, world_size=2, group_name="one", backend="gloo")
    with pytest.raises(EngineError, match=rf"group one: it cannot be joined \(nobody answers at .*:{port}: ") as raised:
        Receiver(0.2).join(asked)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_a_store_that_is_reached_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    end = serve_store(LOOPBACK, SECONDS)
    reached = reach_store(LOOPBACK, end.port, SECONDS)
    reached.set("key", "value")
    assert end.get("key") == b"value"
    assert capfd.readouterr() == ("", "")


def test_a_name_is_free_again_when_nobody_answers() -> None:
    end = serve_store(LOOPBACK, SECONDS)
    impatient = Receiver(0.1)
    for _ in range(2):
        with pytest.raises(EngineError, match="group one: it cannot be joined"):
            impatient.join(request(end.port))
