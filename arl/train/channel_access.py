"""Admit to the trainer's channel only who knows the run key, before ZeroMQ takes a message of theirs.

    loopback     PLAIN    a password, in the clear, because no byte leaves the machine
    beyond it    CURVE    key pairs of both sides, and everything is encrypted
    run key ─► derive ─► the password; secret of the server, secret of the clients ─► their public halves

ZeroMQ bounds frames, and whole messages that wait, but not the frames of one message. Without a mechanism anybody could
send a message that never ends. During the handshake of these two ZeroMQ takes no frame but the command that comes next.

With CURVE a stranger cannot even begin, because its first message is encrypted for the server's public key, which is
never sent.
"""

import logging
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator
from zmq.utils import z85

from arl.launch.address import is_loopback
from arl.launch.trust import derive

HANDSHAKE_MILLISECONDS = 10_000  # of a connection that has not said who it is
USER = "rank"
_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)  # pyzmq logs passwords at the level below


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


def password(run_key: str) -> str:
    """Derive what a rank shows on loopback."""
    return derive(run_key, "trainer channel, password").hex()


def is_encrypted(address: str) -> bool:
    """Return whether connections to `address` are encrypted.

    >>> is_encrypted("tcp://127.0.0.1:4000"), is_encrypted("tcp://10.0.0.7:4000"), is_encrypted("tcp://[::1]:4000")
    (False, True, False)
    """
    return not is_loopback(urlsplit(address).hostname or "")


def guard_server(socket: "zmq.Socket[Any]", address: str, run_key: str) -> None:
    """Have a socket that will be bound to `address` accept nobody but those whom `authenticator` admits."""
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
    if not is_encrypted(address):
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
        return
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, server_keys(run_key).secret)


def authenticator(context: zmq.asyncio.Context, run_key: str) -> AsyncioAuthenticator:
    """Return what admits the clients of the run to the sockets of `context`, once it is started."""
    made = AsyncioAuthenticator(context, log=_log)
    made.configure_plain("*", {USER: password(run_key)})
    made.configure_curve_callback("*", OnlyClient(run_key))
    return made


def show_key(socket: "zmq.Socket[Any]", address: str, run_key: str) -> None:
    """Have a socket that will be connected to `address` show that it knows the run key.

    Beyond loopback it talks to nobody but the controller of the run.
    """
    if not is_encrypted(address):
        socket.setsockopt(zmq.PLAIN_USERNAME, USER.encode())
        socket.setsockopt(zmq.PLAIN_PASSWORD, password(run_key).encode())
        return
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
