"""Take a free port of an address. Standard library only: SGLang's server process loads it by its path."""

import socket


def bind_free(host: str) -> socket.socket:
    """Return a socket that is bound to a free port of `host`. It does not listen yet.

    No other socket takes the port by chance. One that sets SO_REUSEADDR may listen on it while this one does not.

    Raises:
        OSError: this machine does not have the address.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.bind((host, 0))
    except OSError:
        bound.close()
        raise
    # Only now: two sockets that set it before they bind could take the same port.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return bound
