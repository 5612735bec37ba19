"""Sockets that are bound to an interface."""

import socket

import pytest
from thunderfleet_agent.measure.session.streams import bind_to


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_socket_of_either_family_can_be_bound_to_an_interface(family: socket.AddressFamily) -> None:
    name = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        bind_to(sock, "127.0.0.1" if family == socket.AF_INET else None, name)
        assert sock.getsockname()[0] == ("127.0.0.1" if family == socket.AF_INET else "::")
