"""Wait for what other processes and threads do."""

import time
from collections.abc import Callable

SECONDS = 60.0


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return when it is so; a test fails if that takes too long."""
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
