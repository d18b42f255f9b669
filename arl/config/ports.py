"""Read a range of ports, as recipes and environment variables write it. It imports next to nothing."""

import re

from arl.errors import InputError

PORT = re.compile("[0-9]{4,5}")


def port_range(text: str) -> range:
    """Read the ports of which processes take theirs.

    >>> port_range("20000-20003")
    range(20000, 20004)

    Raises:
        InputError: it is not of the form FIRST-LAST, or not from 1024 to 65535.
    """
    first, _, last = text.partition("-")
    if PORT.fullmatch(first) and PORT.fullmatch(last) and 1024 <= int(first) <= int(last) <= 65535:
        return range(int(first), int(last) + 1)
    raise InputError(f"cluster.ports {text!r}: give the first port and the last, from 1024 to 65535, as in 20000-20999")
