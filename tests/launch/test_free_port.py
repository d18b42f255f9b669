"""Processes listen on the ports that a firewall leaves open, and say so when none is left."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from arl.errors import InputError
from arl.launch.address import LOOPBACK, PORTS, free_listener


@pytest.fixture
def three_ports(monkeypatch: pytest.MonkeyPatch) -> range:
    """Three neighbouring ports that nobody uses, as the range of a run."""
    for first in range(22000, 26000, 3):
        ports = range(first, first + 3)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in ports:
                probe = stack.enter_context(socket.socket())
                probe.bind((LOOPBACK, port))
            monkeypatch.setenv(PORTS, f"{ports[0]}-{ports[-1]}")
            return ports
    raise AssertionError("no three ports are free")


@contextlib.contextmanager
def listeners(count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(free_listener(LOOPBACK)) for _ in range(count)]
        for listener in opened:
            listener.listen()
        yield opened


def test_every_listener_has_a_port_of_its_own_within_the_range(three_ports: range) -> None:
    with listeners(3) as opened:
        assert {listener.getsockname()[1] for listener in opened} == set(three_ports)
        for listener in opened:
            socket.create_connection(listener.getsockname(), timeout=10).close()


def test_a_range_that_is_taken_is_an_error_that_names_it(three_ports: range) -> None:
    with (
        listeners(3),
        pytest.raises(InputError, match=f"{three_ports[0]}-{three_ports[-1]}: all of them are taken on 127.0.0.1"),
    ):
        free_listener(LOOPBACK)


def test_a_port_that_is_held_without_a_listener_is_not_given_away(three_ports: range) -> None:
    with free_listener(LOOPBACK) as held, listeners(2) as opened:
        assert held.getsockname() not in {listener.getsockname() for listener in opened}


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="Cannot assign requested address"):
        free_listener("192.0.2.1")
