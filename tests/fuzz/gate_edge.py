"""Send damaged messages to the gate of a store, without the run's key, beside a tunnel that is open."""

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

from arl.launch.address import LOOPBACK
from arl.launch.store_tunnel import StoreGate, StoreTunnel
from arl.launch.tls import CERTIFICATE, client_context, server_context
from arl.launch.trust import write_certificate
from tests.fuzz.strangers import SECONDS, SilentCrowd, crowd, damaged, messages, say, shown
from tests.fuzz.trials import Draw, Edge, Trial
from tests.network.stranger import without_check

KEY = "0123456789abcdef" * 3


class Echo:
    """Stand for the store: sends back what it receives, and counts who has connected."""

    def __init__(self) -> None:
        self.listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self.listener.getsockname()[1]
        self.count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                connection, _ = self.listener.accept()
                self.count += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(4096):
                connection.sendall(data)


@contextlib.contextmanager
def prepare(folder: Path) -> Iterator[Draw]:
    """Open a gate and a tunnel through it; at the end another tunnel reaches the store, too."""
    write_certificate(folder)
    listener = socket.create_server((LOOPBACK, 0))
    port: int = listener.getsockname()[1]
    store = Echo()
    with contextlib.ExitStack() as stack:
        stack.enter_context(store.listener)
        gate = StoreGate(listener, store.port, KEY, server_context(folder))
        stack.callback(gate.close)
        silent = stack.enter_context(crowd())
        near = stack.enter_context(_tunnel(port, folder))
        hello = _client_hello()

        def draw(random: Random) -> Trial:
            pieces = damaged(random, random.choice([*messages(random), hello, hello, *_guesses(random)]))
            in_tls = random.random() < 0.5
            stays = random.random() < 0.2
            return Trial(f"tls {in_tls}, {shown(pieces)}", lambda: _try(port, pieces, in_tls, silent, stays, near))

        yield draw
        with _tunnel(port, folder) as late:
            _exchange(late)
        assert store.count == 2, "nobody else was let through"


@contextlib.contextmanager
def _tunnel(gate: int, folder: Path) -> Iterator[socket.socket]:
    tunnel = StoreTunnel(LOOPBACK, gate, KEY, client_context(folder / CERTIFICATE))
    try:
        with socket.create_connection((LOOPBACK, tunnel.port), SECONDS) as near:
            yield near
    finally:
        tunnel.close()


def _try(port: int, pieces: list[bytes], in_tls: bool, silent: SilentCrowd, stays: bool, near: socket.socket) -> None:
    answer = say(port, pieces, silent, stays, without_check().wrap_socket if in_tls else None)
    if in_tls:
        assert answer == b""
    else:
        assert answer[:2] in (b"", b"\x15\x03", b"\x16\x03"), answer  # an alert, or a handshake
    _exchange(near)


def _exchange(near: socket.socket) -> None:
    question = os.urandom(16)
    near.sendall(question)
    assert near.recv(len(question), socket.MSG_WAITALL) == question


def _guesses(random: Random) -> list[bytes]:
    """Return keys that are not the run's, and what is behind a key."""
    wrong = bytearray(KEY.encode())
    wrong[random.randrange(len(wrong))] ^= 1
    return [bytes(wrong), bytes(wrong) + b"x" * 1000, KEY.encode()[:-1], KEY.upper().encode(), bytes(len(KEY))]


def _client_hello() -> bytes:
    """Return the first message of a TLS client."""
    outgoing = ssl.MemoryBIO()
    client = without_check().wrap_bio(ssl.MemoryBIO(), outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


GATE = Edge(prepare, trials=40)
