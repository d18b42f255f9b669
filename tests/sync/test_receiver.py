"""Join groups as an engine does: several callers at the same time, and callers that wait no longer."""

import pytest

from arl.errors import EngineError
from arl.launch.network import LOOPBACK, free_listener
from arl.sync.process_group import Receiver

SECONDS = 20.0


@pytest.mark.parametrize("host", [LOOPBACK, "nowhere.invalid", "a..b", "a\0b"])
def test_an_address_where_nobody_listens_is_one_line_and_leaves_nothing_in_the_log(
    host: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Torch would log each attempt with the frames of its C++."""
    with free_listener(LOOPBACK) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EngineError, match=rf"group one: it cannot be joined \(nobody answers at .*:{port}: ") as raised:
        Receiver(0.2).join("one", host, port, 1, 2, "gloo")
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")
