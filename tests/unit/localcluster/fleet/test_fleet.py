"""Fleet files: messages name file and line, and say what is allowed."""

from pathlib import Path

import pytest
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.checks import problems
from thunderfleet_localcluster.fleet.fault_state import MAX_RATE_MBPS
from thunderfleet_localcluster.fleet.file import DEFAULT_FLEET, MACS_AND_HUB, load_fleet, parse_fleet

GOOD = """\
machines:
  - name: a
    model: Mac Studio (M3 Ultra)
    memory: 96 GB
  - name: b
    model: Mac mini (M4)
  - name: c
    kind: linux
cables:
  - a: a:1
    b: b:1
    speed: 40
"""

BAD = [
    ("speed: 40", "speed: 50", 12, "speed is in Gb/s; allowed: 20, 40, 80, 120/40"),
    ("speed: 40", "speed: 80", 12, "b:1 of a Mac mini (M4) is Thunderbolt 4: at most 40 Gb/s"),
    ("speed: 40", "sped: 40", 12, "unknown key; allowed: a, b, speed"),
    ("speed: 40", "rateMbps: 0", 12, "cables[0].rateMbps: input should be greater than or equal to 1"),
    ("speed: 40", "rateMbps: 100001", 12, "cables[0].rateMbps: input should be less than or equal to 100000"),
    ("cables:", "switches: []\ncables:", 9, "switches: unknown key; allowed: machines, cables"),
    ("b: b:1", "b: b:4", 11, "has the Thunderbolt ports 1 to 3"),
    ("b: b:1", "b: c:1", 11, "Thunderbolt cables join Macs"),
    ("b: b:1", "b: d:1", 11, "unknown machine d; machines: a, b, c"),
    ("b: b:1", "b: a:2", 11, "must join two different machines"),
    ("b: b:1", "b: b:0", 11, "cables[0].b.port: input should be greater than or equal to 1"),
    ("b: b:1", "b: b", 11, "machine:port, such as studio-1:1"),
    ("b: b:1", "", 10, "cables[0].b: required"),
    ("memory: 96 GB", "memory: 100 GB", 4, "allowed for a Mac Studio (M3 Ultra): 96 GB, 256 GB, 512 GB"),
    ("memory: 96 GB", "memory: lots", 4, "whole number of GB, such as 96 GB"),
    ("memory: 96 GB", "rdma: perhaps", 4, "must be true or false"),
    ("memory: 96 GB", "bridge: [7]", 4, "ports 1 to 6"),
    ("memory: 96 GB", "wiredLimitMB: -1", 4, "greater than or equal to 0"),
    ("memory: 96 GB", "address: 10.0.0.1", 4, "192.168.64.2 to 192.168.64.254"),
    ("memory: 96 GB", "name: x", 4, "duplicate key 'name'"),
    ("model: Mac mini (M4)", "model: Mac mini (M9)", 6, "unknown model; allowed: "),
    ("model: Mac mini (M4)", "memory: 16 GB", 5, "b is a Mac: set model (one of: "),
    ("- name: b", "- name: a", 5, "duplicate machine name a"),
    ("- name: b", "- name: B", 5, "machines[1].name: string should match"),
    ("memory: 96 GB", "devices: [{port: 7, kind: drive, name: X}]", 4, "has the Thunderbolt ports 1 to 6"),
    ("memory: 96 GB", "devices: [{port: 1, kind: drive, name: X}]", 10, "port a:1 already has the drive X"),
    ("memory: 96 GB", f"devices: [{{port: 2, kind: dock, name: {'X' * 65}}}]", 4, "at most 64 characters"),
    ("memory: 96 GB", "devices: [{port: 2, kind: fridge, name: X}]", 4, "'dock', 'display' or 'drive'"),
    ("memory: 96 GB", "devices: [{port: 2, kind: dock, name: X, size: 3}]", 4, "allowed: port, kind, name, speed"),
    ("model: Mac mini (M4)", "model: Mac mini (M4)\n    devices: [{port: 2, kind: dock, name: X, speed: 80}]", 7, "at most 40"),
    ("model: Mac mini (M4)", "model: Virtual Mac (M4 Max)", 11, "has no Thunderbolt port"),
    ("model: Mac mini (M4)", "model: Virtual Mac (M4 Max)\n    rdma: true", 7, "RDMA needs a Thunderbolt port"),
    ("speed: 40", "speed: 40\n    through: [A, B, C, D, E, F]", 13, "at most 5"),
    ("kind: linux", "kind: windows", 8, "'mac' or 'linux'"),
    ("kind: linux", "kind: linux\n    rdma: true", 7, "are for Macs only"),
    ("kind: linux", "kind: [linux", 9, "not valid YAML"),
    ("kind: linux", "[kind]: linux", 8, "not valid YAML: a key is a word"),
]


def test_default_fleet_is_the_demo_and_the_example() -> None:
    fleet = load_fleet(None)
    assert [machine.name for machine in fleet.machines] == ["studio-1", "studio-2", "mini-1", "linux-1", "linux-2"]
    assert [str(end) for cable in fleet.cables for end in cable.ends] == ["studio-1:1", "studio-2:1", "studio-1:2", "mini-1:1"]
    example = Path(__file__).parents[4] / "examples" / "fleet.yaml"
    assert example.read_text() == DEFAULT_FLEET
    assert load_fleet(example) == fleet
    with_hub = parse_fleet(MACS_AND_HUB)
    assert with_hub.machines[:3] == fleet.machines[:3] and with_hub.cables == fleet.cables
    assert [(machine.name, machine.kind) for machine in with_hub.machines[3:]] == [("hub", "linux")]


def test_the_good_file_is_good() -> None:
    assert not list(problems(parse_fleet(GOOD)))
    limited = parse_fleet(GOOD + f"    rateMbps: {MAX_RATE_MBPS}\n")
    assert [cable.rate_mbps for cable in limited.cables] == [100_000]


@pytest.mark.parametrize(("old", "new", "line", "text"), BAD)
def test_errors_name_the_line_and_what_is_allowed(old: str, new: str, line: int, text: str) -> None:
    bad = GOOD.replace(old, new, 1)
    assert bad != GOOD
    # A replacement that leaves a line empty removes the line.
    bad = "\n".join(text_line for text_line in bad.split("\n") if text_line.strip() or new != "")
    with pytest.raises(LocalClusterError) as caught:
        parse_fleet(bad, "my.yaml")
    assert caught.value.usage
    found = [one for one in str(caught.value).split("\n") if one.startswith(f"my.yaml:{line}: ")]
    assert found and any(text in one for one in found), str(caught.value)


def test_a_fleet_has_two_hundred_machines_at_most() -> None:
    def many(count: int) -> str:
        return "machines:\n" + "".join(f"  - {{name: l{number}, kind: linux}}\n" for number in range(count))

    assert len(parse_fleet(many(200)).machines) == 200
    with pytest.raises(LocalClusterError, match="machines: tuple should have at most 200 items"):
        parse_fleet(many(201))


def test_all_errors_are_reported_together() -> None:
    bad = GOOD.replace("speed: 40", "speed: 50").replace("a: a:1", "a: a")
    with pytest.raises(LocalClusterError) as caught:
        parse_fleet(bad, "f")
    assert {line.split(":")[1] for line in str(caught.value).split("\n")} == {"9", "11"} or len(
        str(caught.value).split("\n")
    ) >= 2


def test_one_port_takes_one_cable() -> None:
    with pytest.raises(LocalClusterError, match=r"f:13: cables\[1\].a: port a:1 already has a cable \(a:1 to b:1\)"):
        parse_fleet(GOOD + "  - a: a:1\n    b: b:2\n    speed: 40\n", "f")


def test_addresses_of_a_cable_are_a_pair() -> None:
    with pytest.raises(LocalClusterError, match="two hosts of one /30"):
        parse_fleet(GOOD + "    addresses: [10.0.0.1, 10.0.0.5]\n")
    parse_fleet(GOOD + "    addresses: [10.0.0.1, 10.0.0.2]\n")


def test_an_address_has_four_numbers_up_to_255() -> None:
    def addressed(address: str) -> str:
        return GOOD + f"    addresses: [{address}, 10.255.0.6]\n"

    (cable,) = parse_fleet(addressed("10.255.0.5")).cables
    assert cable.addresses == ("10.255.0.5", "10.255.0.6")
    for address in ("10.256.0.5", "10.255.0", "10.255.0.5.1", "10.255.0.x", "10.255.-1.5"):
        with pytest.raises(LocalClusterError, match=r"write an IPv4 address, such as 192\.168\.64\.11"):
            parse_fleet(addressed(address))


@pytest.mark.parametrize("text", ["", "[]", "3", "machines: []"])
def test_no_fleet_at_all(text: str) -> None:
    with pytest.raises(
        LocalClusterError, match=r"fleet:1: (a fleet file is a mapping with the keys|machines: a fleet needs at least one)"
    ):
        parse_fleet(text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match=r"cannot read .*nothing\.yaml") as caught:
        load_fleet(tmp_path / "nothing.yaml")
    assert caught.value.usage
