"""Ports for the programs of tests: other ones at each call and in each worker, and none that is taken."""

import socket

import pytest

from tests.support.network import ports


def test_a_claimed_port_is_free_and_not_claimed_again() -> None:
    found = ports.claim(40, "127.0.0.1", "127.0.0.2") + ports.claim(40)
    assert len(set(found)) == 80
    assert all(ports.FIRST <= port < ports.FIRST + ports.COUNT for port in found)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_a_port_that_is_taken_on_one_of_the_addresses_is_passed_over(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    one, other = ports.claim(2, "127.0.0.1", "127.0.0.2")
    monkeypatch.setattr(ports, "_NEXT", iter((one, other)))
    with socket.create_server((address, one)):
        assert ports.claim(1, "127.0.0.1", "127.0.0.2") == [other]


def test_workers_share_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    found = []
    for worker in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        found += list(ports._mine())
    assert len(set(found)) == len(found) > 0.99 * ports.COUNT
