"""Find the address of this machine on a network interface, and the interface of an address. Standard library only.

Linux answers ioctl(SIOCGIFADDR) with a `struct ifreq`: 16 bytes of name, then a `struct sockaddr_in`.
"""

import contextlib
import fcntl
import platform
import socket
import struct

SIOCGIFADDR = 0x8915
NAME_BYTES = 16
REQUEST_BYTES = 256
ADDRESS = slice(20, 24)  # of the answer: behind name, family and port


def interfaces() -> dict[str, str]:
    """Return interface -> IPv4 address, of those that have one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{REQUEST_BYTES}s", name.encode()[: NAME_BYTES - 1])
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, request)
                found[name] = socket.inet_ntoa(answer[ADDRESS])
    return found


def own_address(interface: str | None) -> str:
    """Return the IPv4 address of this machine on `interface`; None: that to which its own name resolves.

    Raises:
        OSError: there is no such interface, it has no address, or the name does not resolve.
    """
    if interface is None:
        name = platform.node()
        try:
            return socket.gethostbyname(name)
        except OSError as error:
            raise OSError(
                f"its own name {name} does not resolve ({error.strerror}), and no interface is given"
            ) from error
    known = interfaces()
    if interface not in known:
        raise OSError(f"no interface {interface} with an IPv4 address; there are {', '.join(sorted(known))}")
    return known[interface]


def interface_of(address: str) -> str | None:
    """Return the interface that has `address`; None: this machine has no such address."""
    for name, own in interfaces().items():
        if own == address:
            return name
    return None
