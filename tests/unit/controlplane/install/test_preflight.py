"""Why a Mac cannot become a control plane or a node."""

from dataclasses import replace
from pathlib import Path

import pytest
from thunderfleet_controlplane.install.mac.preflight import Facts, init_problems, join_problems

GOOD = Facts(True, "26.3", True, ("127.0.0.1", "192.168.1.7", "fd00::7"), {}, 100 << 30, 6 << 30)
HASH = "sha256:" + "0" * 64


def test_a_good_mac_has_no_problem() -> None:
    assert init_problems(GOOD, "studio-1", "192.168.1.7") == []
    assert init_problems(GOOD, "studio-1", "fd00::7") == []
    assert join_problems(GOOD, "studio-1", HASH) == []
    again = replace(GOOD, initialised={"name": "studio-1", "address": "192.168.1.3"}, joined={"caHash": HASH})
    assert init_problems(again, "studio-1", "192.168.1.7") == [], "a control plane whose address changed"
    assert join_problems(replace(GOOD, joined={"caHash": HASH}), "studio-1", HASH) == []
    for version in ("0.1.0", None):
        assert init_problems(replace(GOOD, version="0.1.0", installed=version), "studio-1", "192.168.1.7") == []


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (replace(GOOD, root=False), "run it with sudo"),
        (replace(GOOD, macos=None), "is not a Mac"),
        (replace(GOOD, macos="13.6.1"), "macOS 13.6.1 is too old"),
        (replace(GOOD, launchctl=False), "/bin/launchctl, which is part of macOS, is missing"),
        (replace(GOOD, free_bytes=1 << 30), "1.0 GiB of disk are free, 6 GiB are needed"),
        (replace(GOOD, changeable=("/opt belongs to user 501",)), "/opt belongs to user 501"),
        (replace(GOOD, busy_ports={10250: "kubelet"}), "port 10250 is needed by kubelet and in use"),
        (
            replace(GOOD, version="0.1.0", installed="0.9.0", prefix=Path("/opt/thunderfleet/0.9.0")),
            "version 0.9.0 is installed, and this is version 0.1.0: run /opt/thunderfleet/0.9.0/bin/thunderfleet instead, or",
        ),
    ],
)
def test_what_a_mac_lacks(facts: Facts, says: str) -> None:
    for found in (init_problems(facts, "studio-1", "192.168.1.7"), join_problems(facts, "studio-1", HASH)):
        assert len(found) == 1 and says in found[0]


def test_an_unknown_version_of_macos_is_no_problem() -> None:
    assert init_problems(replace(GOOD, macos="", free_bytes=None), "studio-1", "192.168.1.7") == []


@pytest.mark.parametrize(
    ("address", "says"),
    [(None, "no address"), ("10.0.0.1", "is not an address of this Mac; it has 127.0.0.1"), ("127.0.0.1", "loopback")],
)
def test_the_address_is_one_that_other_macs_reach(address: str | None, says: str) -> None:
    (found,) = init_problems(GOOD, "studio-1", address)
    assert says in found and "--advertise-address" in found


@pytest.mark.parametrize("name", ["", "Studio", "studio_1", "-a", "a" * 64])
def test_names_that_no_node_can_have(name: str) -> None:
    for found in (init_problems(GOOD, name, "192.168.1.7"), join_problems(GOOD, name, HASH)):
        assert len(found) == 1 and "--name" in found[0]


def test_one_mac_is_in_one_cluster() -> None:
    elsewhere = replace(GOOD, joined={"caHash": "sha256:1"})
    control = replace(GOOD, initialised={"name": "other"})
    for found in (
        init_problems(elsewhere, "studio-1", "192.168.1.7"),
        join_problems(elsewhere, "studio-1", HASH),
        init_problems(control, "studio-1", "192.168.1.7"),
        join_problems(control, "studio-1", HASH),
    ):
        assert len(found) == 1 and "thunderfleet reset" in found[0]


def test_all_problems_are_reported_at_once() -> None:
    assert len(init_problems(Facts(False, "12.1", False, ()), "A", None)) == 5
