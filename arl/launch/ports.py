"""Take a free port of an address, within the range that a firewall leaves open. Standard library only.

ARL_PORTS=20000-20999 ─► the first port of the range that nobody has ─► a bound socket        unset: any free port

SGLang's server process, whose interpreter does not have arl, loads this file by its path.
"""

import errno
import os
import socket
from collections.abc import Mapping

PORTS = "ARL_PORTS"  # environment of every process of a run: the ports it may listen on, as in 20000-20999
HIGHEST = 65535


def port_range(environment: Mapping[str, str] = os.environ) -> range | None:
    """Return the ports that processes of this run may listen on; None: any.

    Raises:
        ValueError: the variable holds no range of ports.

    >>> port_range({"ARL_PORTS": "20000-20999"})
    range(20000, 21000)
    """
    given = environment.get(PORTS)
    if not given:
        return None
    first, _, last = given.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) <= HIGHEST):
        raise ValueError(f"{PORTS} {given[:40]!r}: two ports from 1 to {HIGHEST} and a dash, as in 20000-20999")
    return range(int(first), int(last) + 1)


def bind_free(host: str) -> socket.socket:
    """Return a socket that is bound to a free port of `host`, and does not listen yet.

    Raises:
        OSError: `host` is no address of this machine, or every port of the range is taken.
        ValueError: see `port_range`.
    """
    ports = port_range()
    if ports is None:
        return _bind(host, 0, reuse=True)
    # Without SO_REUSEADDR a port is refused that somebody holds without listening, and one that a connection of the
    # last minute has used. The second round takes the latter.
    for reuse in (False, True):
        for port in ports:
            try:
                return _bind(host, port, reuse)
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
    taken = f"every port from {ports[0]} to {ports[-1]} of {host} is taken ({PORTS}); give a wider range"
    raise OSError(errno.EADDRINUSE, taken)


def _bind(host: str, port: int, reuse: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        bound.bind((host, port))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the next process need not wait for a minute
    except OSError:
        bound.close()
        raise
    return bound
