"""Decide who may ask a server: whoever knows its key, at its own address, and no web page.

A page in a browser on this machine reaches loopback as well. Its requests carry its Origin; and where it has its own
name resolve to loopback (DNS rebinding), they carry this name as their Host. Neither is let in, whatever else it knows.
"""

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import NamedTuple

from multidict import CIMultiDictProxy

from arl.launch.tls import is_loopback

HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[^\s\[\]:/@?#\\]{1,255})(:\d{1,5})?")


class HttpRefusal(NamedTuple):
    """Say why a request is not answered."""

    status: int
    reason: str


class RequestRefused(Exception):
    """End a request with a status of its own."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.refusal = HttpRefusal(status, reason)


WITHOUT_KEY = HttpRefusal(401, "this server needs its run key: Authorization: Bearer <key>")


class Access:
    """Check the headers of requests.

    Args:
        key: which every request must show as a bearer token
        addresses: names and addresses of the server, as it was given them and as it listens on them
    """

    def __init__(self, key: str, addresses: Iterable[str]) -> None:
        self._token = _bytes(f"Bearer {key}")
        self._names = {address.lower() for address in addresses}
        self._is_everywhere = any(_is_wildcard(name) for name in self._names)
        if self._is_everywhere:
            self._names.add(socket.gethostname().lower())

    def refusal(self, headers: CIMultiDictProxy[str]) -> HttpRefusal | None:
        """Return why a request with these headers is not answered; None: it is. Without the key it is WITHOUT_KEY."""
        keys = headers.getall("Authorization", [])
        if len(keys) != 1 or not hmac.compare_digest(_bytes(keys[0]), self._token):
            return WITHOUT_KEY
        if "Origin" in headers:
            return HttpRefusal(403, "requests of web pages (with the header Origin) are not answered")
        hosts = headers.getall("Host", [])
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return HttpRefusal(403, "the header Host must be this server's own address, as it was printed when ready")
        return None

    def _is_own(self, host: str) -> bool:
        """Return whether a Host header names this server. Its port does not count, because a tunnel may change it."""
        found = HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].strip("[]").lower()
        return name in self._names or is_loopback(name) or (self._is_everywhere and _is_address(name))


def _bytes(value: str) -> bytes:
    """Return a header's value as it was sent."""
    return value.encode(errors="surrogateescape")


def _is_address(name: str) -> bool:
    """Return whether `name` is a number, which no name server can make another's."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_wildcard(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_unspecified
