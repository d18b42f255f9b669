"""Encrypt the trainer's channel beyond loopback: ZeroMQ's CURVE, with key pairs that derive from the run key.

run key ─► derive ─► secret of the server, secret of the clients ─► their public halves

Whoever knows the run key can compute all four. A stranger cannot even begin, because CURVE's first message is encrypted
for the server's public key, which is never sent.
"""

from typing import Any, NamedTuple
from urllib.parse import urlsplit

import zmq
from zmq.utils import z85

from arl.launch.address import is_loopback
from arl.launch.trust import derive

HANDSHAKE_MILLISECONDS = 10_000  # of a connection that has not said who it is


class KeyPair(NamedTuple):
    """Hold a CURVE key pair, in ZeroMQ's notation."""

    public: bytes
    secret: bytes


def server_keys(run_key: str) -> KeyPair:
    """Derive the controller's key pair."""
    return _keys(run_key, "trainer channel, server")


def client_keys(run_key: str) -> KeyPair:
    """Derive the key pair that all ranks of the run share."""
    return _keys(run_key, "trainer channel, client")


def _keys(run_key: str, purpose: str) -> KeyPair:
    secret = z85.encode(derive(run_key, purpose))
    return KeyPair(zmq.curve_public(secret), secret)


def is_encrypted(address: str) -> bool:
    """Return whether connections to `address` are encrypted.

    >>> is_encrypted("tcp://127.0.0.1:4000"), is_encrypted("tcp://10.0.0.7:4000"), is_encrypted("tcp://[::1]:4000")
    (False, True, False)
    """
    return not is_loopback(urlsplit(address).hostname or "")


def encrypt_server(socket: "zmq.Socket[Any]", run_key: str) -> None:
    """Have a socket that has not been bound accept nobody but the clients of the run."""
    keys = server_keys(run_key)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)


def encrypt_client(socket: "zmq.Socket[Any]", run_key: str) -> None:
    """Have a socket that has not been connected talk to nobody but the controller of the run."""
    keys = client_keys(run_key)
    socket.setsockopt(zmq.CURVE_SERVERKEY, server_keys(run_key).public)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


class OnlyClient:
    """Admit one public key; a credentials provider of zmq.auth."""

    def __init__(self, run_key: str) -> None:
        self._public = client_keys(run_key).public

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether the client that has proved to own `key` is one of the run's."""
        del domain
        return key == self._public
