"""Admit to the trainer's channel only who knows the run key, before ZeroMQ takes a message of theirs.

loopback     PLAIN    a password, in the clear, because no byte leaves the machine
beyond it    CURVE    key pairs of both sides, and everything is encrypted
run key ─► derive ─► the password; secret of the server, secret of the clients ─► their public halves
"""

import hmac
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import zmq
import zmq.asyncio
from zmq.utils import z85

from arl.launch.network import is_loopback
from arl.launch.run_secrets import derive

HANDSHAKE_MILLISECONDS = 10_000  # of a connection that has not said who it is
USER = "rank"
ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ asks who may connect, see rfc.zeromq.org/spec/27


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
    """Have a socket that will be bound to `address` accept only those whom AdmissionByKey admits."""
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
    if not is_encrypted(address):
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
        return
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, server_keys(run_key).secret)


def show_key(socket: "zmq.Socket[Any]", address: str, run_key: str) -> None:
    """Have a socket that will be connected to `address` show that it knows the run key.

    Beyond loopback it talks only to the controller of the run.
    """
    if not is_encrypted(address):
        socket.setsockopt(zmq.PLAIN_USERNAME, USER.encode())
        socket.setsockopt(zmq.PLAIN_PASSWORD, password(run_key).encode())
        return
    keys = client_keys(run_key)
    socket.setsockopt(zmq.CURVE_SERVERKEY, server_keys(run_key).public)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


class AdmissionByKey:
    """Decide for the sockets of a context who may connect: whoever proves to know the run key.

    ZeroMQ asks during each handshake, before it takes a message of the connection. If nobody answers, none is admitted.
    Make it before those sockets are bound, because ZeroMQ admits everybody where there is nobody to ask.
    """

    def __init__(self, context: zmq.asyncio.Context, run_key: str) -> None:
        self._secrets = {
            b"PLAIN": password(run_key).encode(),
            b"CURVE": z85.decode(client_keys(run_key).public),
        }
        self._questions = context.socket(zmq.REP)
        self._questions.bind(ZAP)

    async def run(self) -> NoReturn:
        """Answer for each connection. Waits for the next; unblocked by it."""
        while True:
            version, number, _domain, _address, _identity, mechanism, *shown = await self._questions.recv_multipart()
            secret = self._secrets.get(mechanism)
            # In constant time, so that a stranger cannot find it byte by byte.
            knows = secret is not None and hmac.compare_digest(secret, shown[-1])
            status = [b"200", b"OK"] if knows else [b"400", b"it does not know the run key"]
            await self._questions.send_multipart([version, number, *status, b"", b""])
