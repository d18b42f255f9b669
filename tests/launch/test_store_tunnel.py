"""Torch's stores beyond loopback: a gate that asks for the key, and tunnels that show it."""

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from arl.launch.address import LOOPBACK
from arl.launch.store_tunnel import MOST_UNKNOWN, StoreGate, StoreTunnel
from arl.launch.tls import CERTIFICATE, client_context, server_context
from arl.launch.trust import write_certificate

KEY = "the run's key"
SECONDS = 30.0


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    write_certificate(folder)
    return folder


@pytest.fixture
def store() -> Iterator[socket.socket]:
    """Listen where a store would."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        listening.settimeout(SECONDS)
        yield listening


@contextlib.contextmanager
def gate_of(store: socket.socket, secrets: Path) -> Iterator[int]:
    """Yield the port of a gate."""
    listener = socket.create_server((LOOPBACK, 0))
    gate = StoreGate(listener, store.getsockname()[1], KEY, server_context(secrets))
    try:
        yield listener.getsockname()[1]
    finally:
        gate.close()


@contextlib.contextmanager
def tunnel_to(gate: int, secrets: Path, key: str = KEY) -> Iterator[socket.socket]:
    """Yield a connection to a tunnel."""
    tunnel = StoreTunnel(LOOPBACK, gate, key, client_context(secrets / CERTIFICATE))
    try:
        with socket.create_connection((LOOPBACK, tunnel.port), SECONDS) as near:
            yield near
    finally:
        tunnel.close()


def test_a_tunnel_carries_both_directions_and_ends_with_either(store: socket.socket, secrets: Path) -> None:
    with gate_of(store, secrets) as gate, tunnel_to(gate, secrets) as near:
        near.sendall(b"question")
        far, _ = store.accept()
        with far:
            far.settimeout(SECONDS)
            assert far.recv(8, socket.MSG_WAITALL) == b"question"
            far.sendall(b"answer")
            assert near.recv(6, socket.MSG_WAITALL) == b"answer"
        assert near.recv(1) == b""


def test_with_another_key_the_store_is_not_even_connected(store: socket.socket, secrets: Path) -> None:
    with gate_of(store, secrets) as gate, tunnel_to(gate, secrets, "a guess here!") as near:
        near.sendall(b"question")
        assert near.recv(1) == b""
    store.setblocking(False)
    with pytest.raises(BlockingIOError):
        store.accept()


def test_a_relay_that_is_closed_at_once_leaves_no_thread_and_no_socket(store: socket.socket, secrets: Path) -> None:
    for _ in range(30):
        with gate_of(store, secrets) as gate:
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, gate), SECONDS)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("store ")] == []


def test_a_relay_closes_connections_that_are_open(store: socket.socket, secrets: Path) -> None:
    with gate_of(store, secrets) as gate:
        with tunnel_to(gate, secrets) as near:
            near.sendall(b"x")
            far, _ = store.accept()
            far.settimeout(SECONDS)
            assert far.recv(1) == b"x"
        assert far.recv(1) == b""
        far.close()


def test_a_socket_that_cannot_be_listened_on_is_an_error_at_once(store: socket.socket, secrets: Path) -> None:
    closed = socket.socket()
    closed.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        StoreGate(closed, store.getsockname()[1], KEY, server_context(secrets))


def test_strangers_who_say_nothing_are_held_up_to_a_number_and_do_not_keep_out_who_knows_the_key(
    store: socket.socket, secrets: Path
) -> None:
    with gate_of(store, secrets) as gate, contextlib.ExitStack() as strangers:
        silent = [
            strangers.enter_context(socket.create_connection((LOOPBACK, gate), SECONDS))
            for _ in range(2 * MOST_UNKNOWN)
        ]
        for stranger in silent[:MOST_UNKNOWN]:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b"", "it has given way to a newer one"
        with tunnel_to(gate, secrets) as near:
            near.sendall(b"question")
            far, _ = store.accept()
            with far:
                far.settimeout(SECONDS)
                assert far.recv(8, socket.MSG_WAITALL) == b"question"


def test_a_gate_that_has_no_descriptor_left_goes_on_when_it_has(store: socket.socket, secrets: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with gate_of(store, secrets) as gate:
        waiting = socket.socket()
        lowest = os.dup(waiting.fileno())
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
        try:
            waiting.connect((LOOPBACK, gate))  # the kernel takes it, and the gate cannot
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        waiting.close()
        with tunnel_to(gate, secrets) as near:
            near.sendall(b"x")
            far, _ = store.accept()
            with far:
                far.settimeout(SECONDS)
                assert far.recv(1) == b"x"
