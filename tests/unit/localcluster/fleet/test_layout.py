"""Addresses: unique, stable, inside their network."""

from ipaddress import IPv4Address, IPv4Network

from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import Mode, link_local, mac_address, plan_layout, switch_uid
from thunderfleet_localcluster.fleet.spec import MAX_MACHINES, Fleet
from thunderfleet_localcluster.network.plan import missing_aliases

from tests.support.generated import examples


def _line(count: int) -> Fleet:
    machines = [{"name": f"m{i}", "model": "Mac Studio (M3 Ultra)"} for i in range(count)]
    cables = [{"a": f"m{i}:1", "b": f"m{i + 1}:2"} for i in range(count - 1)]
    return Fleet.model_validate({"machines": machines, "cables": cables})


def test_addresses_of_the_largest_fleet_are_unique_in_both_modes() -> None:
    fleet = _line(MAX_MACHINES)
    modes: tuple[Mode, ...] = ("namespaces", "loopback")
    for mode in modes:
        layout = plan_layout(fleet, mode, 90)
        addresses = [machine.lan.ip for machine in layout.machines]
        addresses += [end.address.ip for machine in layout.machines for end in machine.ends if end.address]
        assert len(set(addresses)) == len(addresses) == MAX_MACHINES + 2 * (MAX_MACHINES - 1)
        assert layout.control_plane.ip not in addresses
        if mode == "loopback":
            assert all(address in IPv4Network("127.90.0.0/16") for address in addresses)
            assert IPv4Address("127.90.255.254") not in addresses


def test_each_cable_has_the_two_hosts_of_a_network_of_its_own() -> None:
    layout = plan_layout(_line(5), "namespaces")
    by_cable: dict[int, set[str]] = {}
    for machine in layout.machines:
        for end in machine.ends:
            assert end.address is not None and end.address.prefix == 30
            by_cable.setdefault(end.index, set()).add(str(end.address.ip))
    networks = {index: IPv4Network(f"{min(found)}/30", strict=False) for index, found in by_cable.items()}
    assert len(set(networks.values())) == len(networks) == 4
    assert by_cable == {index: {str(host) for host in network.hosts()} for index, network in networks.items()}


def test_given_addresses_are_kept_and_not_given_twice() -> None:
    fleet = parse_fleet(
        "machines:\n- {name: a, kind: linux}\n- {name: b, kind: linux, address: 192.168.64.11}\n- {name: c, kind: linux}\n"
    )
    layout = plan_layout(fleet, "namespaces")
    assert [str(machine.lan.ip) for machine in layout.machines] == ["192.168.64.12", "192.168.64.11", "192.168.64.13"]


def test_given_cable_addresses_are_kept() -> None:
    text = """
machines:
- {name: a, model: Mac Studio (M3 Ultra)}
- {name: b, model: Mac Studio (M3 Ultra)}
cables:
- {a: a:1, b: b:1}
- {a: a:2, b: b:2, addresses: [10.64.1.2, 10.64.1.1]}
"""
    layout = plan_layout(parse_fleet(text), "namespaces")
    ends = {end.port: str(end.address.ip) for end in layout.machine("a").ends if end.address}
    assert ends == {1: "10.64.1.5", 2: "10.64.1.2"}


@given(st.text(min_size=1, max_size=10), st.integers(1, 6))
@settings(max_examples=examples(50))
def test_identities_are_stable_and_local(name: str, port: int) -> None:
    mac = mac_address(name, f"en{port}")
    assert mac == mac_address(name, f"en{port}")
    assert int(mac[:2], 16) & 3 == 2
    assert link_local(mac).startswith("fe80::")
    assert len(switch_uid(name, port)) == 18


def test_missing_loopback_addresses_are_reported_as_commands() -> None:
    layout = plan_layout(_line(2), "loopback", 64)
    lines = missing_aliases(layout, lambda address: address == "127.64.0.1")
    addresses = ["127.64.0.11", "127.64.0.12", "127.64.1.1", "127.64.1.2"]
    assert lines == [f"sudo ifconfig lo0 alias {address} up" for address in addresses]
    assert missing_aliases(layout, lambda address: True) == []


def test_link_local_is_the_kernels() -> None:
    assert link_local("02:00:00:00:00:01") == "fe80::ff:fe00:1"
    assert link_local("02:03:d8:58:b6:6d") == "fe80::3:d8ff:fe58:b66d"
