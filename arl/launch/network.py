"""Say where the processes of a run listen: an address, a network interface, a free port, and TLS beyond loopback.

server: server_context(folder)         shows the certificate
client: client_context(certificate)    accepts this certificate alone, on whatever host

SGLang's processes load this file by its path, so it imports the standard library only.
"""

import contextlib
import ipaddress
import os
import platform
import secrets
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

HOST = "ARL_HOST"  # environment of every process of a run: the address on which it listens and is reached
LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE: Mapping[str, str] = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
TLS = "ARL_TLS"  # environment of every process of a run: the folder of the certificate; unset: servers without TLS
CERTIFICATE = "certificate.pem"
PRIVATE_KEY = "key.pem"


def listening_address() -> str:
    """Return the address on which this process listens: its launcher's choice, or loopback if none started it."""
    return os.environ.get(HOST, LOOPBACK)


def is_loopback(host: str) -> bool:
    """Return True if only processes of this machine reach `host`.

    >>> [is_loopback(host) for host in ("localhost", "::1", "10.0.0.7", "node-3")]
    [True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may be any machine's
        return False


def host_identity() -> str:
    """Identify what shares its loopback addresses with this process: one boot of a machine, and a network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    network = Path("/proc/self/ns/net").readlink()
    return f"{boot} {network}"


def new_key() -> str:
    """Make the secret of one run, which only its own processes know."""
    return secrets.token_hex(24)  # hexadecimal, because a command line could take a leading "-" for an option


def interfaces() -> dict[str, str]:
    """Return interface -> IPv4 address, of those that have one."""
    import psutil  # which SGLang's interpreter need not have

    return {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in reversed(entries)  # the first of several addresses counts
        if entry.family == socket.AF_INET
    }


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
            raise OSError(f"its own name {name} does not resolve, and no interface is given") from error
    known = interfaces()
    if interface not in known:
        raise OSError(f"no interface {interface} with an IPv4 address; there are {', '.join(sorted(known))}")
    return known[interface]


def interface_environment(address: str) -> Mapping[str, str]:
    """Return the variables by which gloo and NCCL take the interface of `address`; none if it is of no interface."""
    if is_loopback(address):
        return LOOPBACK_INTERFACE
    names = [name for name, own in interfaces().items() if own == address]
    return dict.fromkeys(LOOPBACK_INTERFACE, names[0]) if names else {}


def free_listener(host: str) -> socket.socket:
    """Return a socket that is bound to a free port of `host`. It does not listen yet.

    No other socket takes the port by chance. One that sets SO_REUSEADDR may listen on it while this one does not.

    Raises:
        OSError: this machine does not have the address.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.bind((host, 0))
    # Only now: two sockets that set it before they bind could take the same port.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return bound


@contextlib.contextmanager
def held_port(host: str) -> Iterator[int]:
    """Hold a free port of `host` until another socket listens on it, which takes seconds."""
    with free_listener(host) as held:
        yield held.getsockname()[1]


@contextlib.contextmanager
def held_rendezvous() -> Iterator[tuple[str, int]]:
    """Hold a port where the ranks of a process group will meet, and yield address and port.

    Only rank 0 does, with others to meet, if torchrun has not chosen a port already; else they are "" and 0.
    """
    if os.environ["RANK"] != "0" or os.environ["WORLD_SIZE"] == "1" or "MASTER_PORT" in os.environ:
        yield "", 0
        return
    host = listening_address()
    with held_port(host) as port:
        yield host, port


def tls_folder(host: str) -> Path | None:
    """Return the folder of the certificate that servers on `host` show; None: they serve without TLS."""
    given = os.environ.get(TLS)
    return Path(given) if given and not is_loopback(host) else None


def server_context(folder: Path) -> ssl.SSLContext:
    """Return the context of a server.

    Raises:
        OSError: the certificate or its key cannot be read, or they do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / CERTIFICATE, folder / PRIVATE_KEY)
    return context


def client_context(certificate: str | Path) -> ssl.SSLContext:
    """Return the context of a client. Host names do not count, because the certificate is known in advance.

    Raises:
        OSError: the certificate cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cafile=certificate)
    return context
