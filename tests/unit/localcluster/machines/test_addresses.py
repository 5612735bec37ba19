"""The loopback addresses that macOS does not have until somebody adds them."""

import io
import sys
from pathlib import Path

import pytest
from thunderfleet_localcluster.client import addresses
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError

LINE = "sudo ifconfig lo0 alias 127.64.0.1 up"


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The loopback addresses that exist."""
    found: set[str] = set()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(addresses, "can_bind", lambda address: address in found)
    return found


def add(line: str, bound: set[str]) -> int:
    bound.add(line.split()[4])
    return 0


def test_missing_addresses_are_added_if_somebody_agrees(bound: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    addresses.offer_addresses(None, ask=lambda _: "y", run=lambda line: add(line, bound))
    assert {"127.64.0.1", "127.64.0.11"} <= bound
    assert LINE in capsys.readouterr().out
    addresses.offer_addresses(None, ask=lambda _: pytest.fail("asked again"))


@pytest.mark.parametrize("answer", ["", "n", "what?"])
def test_without_consent_nothing_runs_and_the_commands_are_shown(bound: set[str], answer: str) -> None:
    with pytest.raises(LocalClusterError, match=LINE):
        addresses.offer_addresses(None, ask=lambda _: answer, run=lambda line: pytest.fail(line))


def test_nobody_is_asked_without_a_terminal(bound: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asked"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(LocalClusterError, match=LINE):
        addresses.offer_addresses(None)


def test_a_command_that_fails_ends_the_attempt(bound: set[str]) -> None:
    tried: list[str] = []

    def fail(line: str) -> int:
        tried.append(line)
        return 1

    with pytest.raises(LocalClusterError, match=LINE):
        addresses.offer_addresses(None, ask=lambda _: "yes", run=fail)
    assert tried == [LINE]


def test_a_start_looks_at_the_addresses_before_it_builds_programs(
    bound: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thunderfleet_localcluster.client.cluster.find_programs", lambda _: pytest.fail("built first"))
    with pytest.raises(LocalClusterError, match=LINE):
        Cluster.start(directory=tmp_path, network="loopback")
