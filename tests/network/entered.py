"""Do on a host what `python -m MODULE` does: `python -m tests.network.entered HOST MODULE ARGUMENTS…`."""

import ctypes
import importlib
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000


def main() -> None:
    """Enter the host's network, before anything makes a thread."""
    host, *sys.argv = sys.argv[1:]
    with Path("/run/netns", host).open() as namespace:
        assert ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0
    importlib.import_module(sys.argv[0]).main()
