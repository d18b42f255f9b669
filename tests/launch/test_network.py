"""Every process listens on a port of its own."""

from arl.launch.network import LOOPBACK, free_listener


def test_a_port_that_is_held_without_a_listener_is_not_given_away() -> None:
    with free_listener(LOOPBACK) as held, free_listener(LOOPBACK) as other:
        other.listen()
        assert held.getsockname() != other.getsockname()
