"""Ports in use are skipped, also by sockets that could share them."""

import socket

import pytest
from thunderfleet_runner.net.ports import NoFreePort, PortBlock, is_ours

from tests.support.network.ports import claim


def listening(port: int, *, shared: bool) -> socket.socket:
    held = socket.socket()
    if shared:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.9", port))
    held.listen()
    return held


def test_ports_are_taken_in_order_round_and_round() -> None:
    ports = claim(3, "127.0.0.9")
    block = PortBlock(ports)
    assert [block.take("127.0.0.9") for _ in range(4)] == [*ports, ports[0]]


@pytest.mark.parametrize("shared", [False, True])
def test_a_listener_is_seen_even_when_it_would_share(shared: bool) -> None:
    ports = claim(2, "127.0.0.9")
    with listening(ports[0], shared=shared):
        assert PortBlock(ports).take("127.0.0.9") == ports[1]


def test_no_port_left_names_the_block() -> None:
    ports = claim(1, "127.0.0.9")
    with listening(ports[0], shared=True), pytest.raises(NoFreePort, match=f"{ports[0]}-{ports[0]} on 127.0.0.9"):
        PortBlock(ports).take("127.0.0.9")


def test_an_address_of_another_machine_is_an_error_not_a_taken_port() -> None:
    with pytest.raises(OSError):
        PortBlock([21999]).take("192.0.2.1")
    assert not is_ours("192.0.2.1")
    assert is_ours("127.0.0.9")
