"""Open both ends of TLS with the certificate of a run. Standard library only, because SGLang's processes load it, too.

server: server_context(folder)         shows the certificate
client: client_context(certificate)    accepts this certificate alone, on whatever host
"""

import ipaddress
import os
import ssl
from pathlib import Path

TLS = "ARL_TLS"  # environment of every process of a run: the folder of the certificate; unset: servers without TLS
CERTIFICATE = "certificate.pem"
PRIVATE_KEY = "key.pem"


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
