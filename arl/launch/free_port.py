"""Take a free port of an address. Standard library only: SGLang's server process loads it by its path.

    ports that a firewall leaves open ─► the first that nobody has ─► a bound socket, which does not listen yet

No other socket takes the port by chance. One that sets SO_REUSEADDR may listen on it while this one does not. A port
whose connections this side has closed is free again after a minute.
"""

import errno
import socket
from collections.abc import Iterable

ANY_PORT = range(1)  # 0 lets the kernel choose


def bind_free(host: str, ports: Iterable[int] = ANY_PORT) -> socket.socket:
    """Return a socket that is bound to a free port of `host`.

    Raises:
        OSError: EADDRINUSE, if all of `ports` are taken; or this machine does not have the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        bound = socket.socket(family)
        try:
            bound.bind((host, port))
        except OSError as error:
            bound.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        # Only now: two sockets that set it before they bind could take the same port.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return bound
    raise OSError(errno.EADDRINUSE, "all of its ports are taken")
