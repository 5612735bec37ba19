"""Recorded Macs: every text is consistent with the fleet, its Mac's other texts and the other end of each cable."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thunderfleet_localcluster.fleet.file import load_fleet, parse_fleet
from thunderfleet_localcluster.fleet.layout import Layout, MachineLayout, plan_layout
from thunderfleet_localcluster.fleet.spec import Fleet
from thunderfleet_localcluster.recorded import hardware, network, rdma
from thunderfleet_localcluster.recorded.folder import texts, write_machine
from thunderfleet_localcluster.recorded.thunderbolt import thunderbolt

from tests.support.generated import examples

Json = dict[str, Any]


def _peers(item: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[Json, tuple[str, ...]]]:
    for child in item.get("_items", []):
        if "domain_uuid_key" in child:
            yield child, path
        yield from _peers(child, (*path, child["_name"]))


def _macs(layout: Layout) -> list[MachineLayout]:
    return [machine for machine in layout.machines if machine.machine.kind == "mac"]


@pytest.fixture
def check(fleets: st.SearchStrategy[Fleet]) -> Any:
    """Runs a check on many random layouts."""

    def run(body: Any) -> None:
        @settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(fleets, st.sampled_from(["namespaces", "loopback"]))
        def inner(fleet: Fleet, mode: Any) -> None:
            body(plan_layout(fleet, mode, 77))

        inner()

    return run


@pytest.mark.hypothesis
def test_both_ends_of_every_cable_agree(check: Any) -> None:
    def body(layout: Layout) -> None:
        domains: dict[str, tuple[str, int]] = {}
        buses: dict[tuple[str, int], Json] = {}
        for machine in _macs(layout):
            report = thunderbolt(layout, machine)["SPThunderboltDataType"]
            report = [bus for bus in report if bus != {"Thunderbolt": "no_hardware"}]
            assert len(report) == machine.machine.mac.ports
            for bus in report:
                port = int(bus["receptacle_1_tag"]["receptacle_id_key"])
                assert bus["domain_uuid_key"] not in domains
                domains[bus["domain_uuid_key"]] = (machine.name, port)
                buses[(machine.name, port)] = bus
        assert len({bus["switch_uid_key"] for bus in buses.values()}) == len(buses)
        for machine in _macs(layout):
            for port in range(1, machine.machine.mac.ports + 1):
                bus, end = buses[(machine.name, port)], machine.end(port)
                seen = list(_peers(bus))
                tag = bus["receptacle_1_tag"]
                if end is None:
                    plugged = port in {device.port for device in machine.machine.devices}
                    assert not seen and tag["current_speed_key"].startswith("40 Gb/s" if plugged else "Up to")
                    continue
                assert tag["receptacle_status_key"] == "receptacle_connected"
                other = buses[(end.peer, end.peer_port)]
                assert tag["current_speed_key"] == other["receptacle_1_tag"]["current_speed_key"]
                if not end.sees_peer:
                    assert not seen
                    continue
                ((peer, path),) = seen
                assert domains[peer["domain_uuid_key"]] == (end.peer, end.peer_port)
                assert peer["_name"] == other["device_name_key"]
                assert path == (end.cable.through if end.upstream else ())

    check(body)


@pytest.mark.hypothesis
def test_ports_are_interfaces_and_addresses_are_real(check: Any) -> None:
    def body(layout: Layout) -> None:
        used: set[str] = set()
        for machine in _macs(layout):
            ports = dict(re.findall(r"Hardware Port: (.*)\nDevice: (.*)\n", network.hardware_ports(machine)))
            outputs = network.ifconfig(machine)
            found = [name for name in ports if re.fullmatch(r"Thunderbolt \d+", name)]
            assert len(found) == machine.machine.mac.ports
            assert set(ports.values()) <= set(outputs)
            assert len(set(ports.values())) == len(ports)
            assert f"\tinet {machine.lan.ip} netmask" in outputs["en0"]
            for number in range(1, machine.machine.mac.ports + 1):
                text, end = outputs[ports[f"Thunderbolt {number}"]], machine.end(number)
                assert ("status: active" in text) == (end is not None)
                bridged = number in machine.machine.bridge
                assert (f"member: {ports[f'Thunderbolt {number}']} " in outputs.get("bridge0", "")) == bridged
                inet = re.findall(r"\tinet (\S+) netmask", text)
                assert inet == ([str(end.address.ip)] if end is not None and end.address else [])
                assert not (bridged and inet)
                for address in inet:
                    assert address not in used
                    used.add(address)
                if end is not None and end.address:
                    far = layout.machine(end.peer).end(end.peer_port)
                    assert far is not None
                    assert far.address is None or far.address.network == end.address.network
            assert ("bridge0" in outputs) == bool(machine.machine.bridge)

    check(body)


@pytest.mark.hypothesis
def test_rdma_is_where_it_can_be(check: Any) -> None:
    def body(layout: Layout) -> None:
        for machine in _macs(layout):
            found = {device.name: device for device in rdma.devices(layout, machine)}
            listed = re.findall(r"^    (rdma_\S+)\s+([0-9a-f]{16})$", rdma.ibv_devices(list(found.values())), re.MULTILINE)
            assert [name for name, _ in listed] == list(found)
            mac = machine.machine.mac
            assert bool(found) == (machine.machine.rdma and mac.thunderbolt == 5)
            for number, interface in enumerate(mac.thunderbolt_interfaces, 1):
                if not found:
                    break
                device, end = found[f"rdma_{interface}"], machine.end(number)
                text = rdma.ibv_devinfo(device, verbose=True)
                peer = layout.machine(end.peer) if end else None
                fast = end is not None and end.cable.gbps > 40 and peer is not None and peer.machine.rdma
                assert ("PORT_ACTIVE (4)" in text) == fast
                mapped = re.findall(r"GID\[ *\d+\]:\t\t::ffff:(\S+)", text)
                assert mapped == ([str(end.address.ip)] if fast and end is not None and end.address else [])

    check(body)


@pytest.mark.hypothesis
def test_texts_have_the_layout_of_system_profiler(check: Any) -> None:
    def body(layout: Layout) -> None:
        for machine in _macs(layout):
            found = texts(layout, machine)
            for name in ("SPThunderboltDataType.json", "SPHardwareDataType.json"):
                report = json.loads(found[name])
                assert list(report) == [name.removesuffix(".json")]
                assert found[name].startswith('{\n  "SP') and '" : ' in found[name] and '": ' not in found[name]
            facts = json.loads(found["SPHardwareDataType.json"])["SPHardwareDataType"][0]
            values = hardware.sysctl(machine.machine)
            assert facts["physical_memory"] == f"{int(values['hw.memsize']) >> 30} GB"
            assert str(facts["number_processors"]).removeprefix("proc ").split(":")[0] == values["hw.ncpu"]
            assert facts["chip_type"] == values["machdep.cpu.brand_string"]

    check(body)


# -- the executables ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def bins(tmp_path: Path) -> dict[str, Path]:
    """The default fleet's commands."""
    layout = plan_layout(load_fleet(None), "namespaces")
    for machine in _macs(layout):
        write_machine(layout, machine, tmp_path / "a folder" / machine.name / "bin")
    return {machine.name: tmp_path / "a folder" / machine.name / "bin" for machine in _macs(layout)}


def _run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    # Without the host's PATH: commands must not need programs that a container may not have.
    command = [str(folder / argv[0]), *argv[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={"PATH": str(folder)})


def test_commands_print_what_they_should(bins: dict[str, Path]) -> None:
    studio = bins["studio-1"]
    ok: dict[tuple[str, ...], str] = {
        ("system_profiler", "SPThunderboltDataType", "-json"): '"thunderboltusb4_bus_5"',
        ("system_profiler", "-json", "SPHardwareDataType", "-detailLevel", "mini"): '"chip_type" : "Apple M3 Ultra"',
        ("networksetup", "-listallhardwareports"): "Hardware Port: Thunderbolt 6\nDevice: en7\n",
        ("networksetup", "-listnetworkserviceorder"): "(1) Ethernet\n(Hardware Port: Ethernet, Device: en0)\n",
        ("networksetup", "-getnetworkserviceenabled", "Wi-Fi"): "Enabled\n",
        ("ifconfig", "-a"): "en2: flags=8863<UP,",
        ("ifconfig",): "lo0: flags=8049<UP,",
        ("ifconfig", "en2"): "\tinet 10.64.1.1 netmask 0xfffffffc broadcast 10.64.1.3\n",
        ("ibv_devices",): "    rdma_en2        \t",
        ("ibv_devinfo", "-v", "-d", "rdma_en2"): "\t\t\tGID[  1]:\t\t::ffff:10.64.1.1\n",
        ("ibv_devinfo",): "hca_id:\trdma_en7\n",
        ("rdma_ctl", "status"): "enabled\n",
        ("sysctl", "-n", "hw.memsize", "hw.ncpu"): "103079215104\n28\n",
        ("sysctl", "iogpu.wired_limit_mb"): "iogpu.wired_limit_mb: 0\n",
        ("caffeinate", "-is", "-w", "999999999"): "",
        ("sw_vers",): "ProductVersion:\t\t26.3\n",
        ("sw_vers", "-buildVersion"): "25D125\n",
        ("vm_stat",): "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:",
        ("netstat", "-ib"): "en2        1500  <Link#",
        ("netstat", "-ib", "-I", "en2"): "Name       Mtu   Network",
        ("route", "-n", "get", "10.64.1.2"): "  interface: en2\n",
        ("route", "-n", "get", "10.64.1.1"): "  interface: lo0\n",
        ("route", "-n", "get", "192.168.64.11"): "  interface: lo0\n",
        ("route", "get", "192.168.64.12"): "  interface: en0\n",
        ("route", "-n", "get", "default"): "    gateway: 192.168.64.1\n  interface: en0\n      flags: <UP,GATEWAY,",
    }
    for argv, text in ok.items():
        done = _run(studio, *argv)
        assert (done.returncode, done.stderr) == (0, ""), (argv, done)
        assert text in done.stdout, (argv, done.stdout)


def test_commands_refuse_what_they_do_not_know(bins: dict[str, Path]) -> None:
    for argv, text in {
        ("system_profiler", "SPNothing", "-json"): "SPNothing",
        ("system_profiler", "SPThunderboltDataType"): "JSON",
        ("networksetup", "-setnothing"): "The parameters were not valid",
        ("ifconfig", "en99"): "interface en99 does not exist",
        ("ifconfig", "en2", "down"): "cannot be changed",
        ("ibv_devinfo", "-d", "rdma_en99"): "wasn't found",
        ("rdma_ctl", "enable"): "Recovery",
        ("sysctl", "no.such"): "unknown oid 'no.such'",
        ("sw_vers", "-nothing"): "usage",
        ("caffeinate", "-x"): "usage",
        ("vm_stat", "1"): "Usage",
        ("route", "get", "8.8.8.8"): "not in table",
    }.items():
        done = _run(bins["studio-1"], *argv)
        assert done.returncode != 0, argv
        assert text in done.stderr, (argv, done)


def test_one_unknown_variable_costs_only_itself(bins: dict[str, Path]) -> None:
    done = _run(bins["mini-1"], "sysctl", "-n", "no.such", "hw.ncpu")
    assert (done.returncode, done.stdout) == (1, "10\n")


def test_thunderbolt_4_lists_no_rdma_device(bins: dict[str, Path]) -> None:
    assert _run(bins["mini-1"], "ibv_devices").stdout.count("\n") == 2
    done = _run(bins["mini-1"], "ibv_devinfo", "-v")
    assert done.returncode != 0 and done.stderr == "No IB devices found\n"
    assert _run(bins["mini-1"], "rdma_ctl", "status").stdout == "disabled\n"


def test_commands_may_be_rewritten_while_they_run(bins: dict[str, Path]) -> None:
    layout = plan_layout(load_fleet(None), "namespaces")
    before = _run(bins["studio-1"], "ifconfig", "-a").stdout
    write_machine(layout, layout.machine("studio-1"), bins["studio-1"])
    assert _run(bins["studio-1"], "ifconfig", "-a").stdout == before
    assert not [path for path in bins["studio-1"].iterdir() if path.name.endswith(".new")]


ODD = """
machines:
  - {name: a, model: Mac Studio (M5 Ultra), rdma: true, devices: [{port: 6, kind: drive, name: TBU405Pro}]}
  - {name: b, model: MacBook Pro (M3), devices: [{port: 2, kind: dock, name: CalDigit TS4}]}
  - {name: v, model: Virtual Mac (M4 Max), memory: 8 GB}
cables:
  - {a: "a:1", b: "b:1", speed: 40, through: [CalDigit TS5, Studio Display]}
"""


def test_devices_hubs_behind_hubs_and_virtual_macs() -> None:
    layout = plan_layout(parse_fleet(ODD), "loopback")
    trees = {name: thunderbolt(layout, layout.machine(name))["SPThunderboltDataType"] for name in "abv"}
    buses = {int(bus["receptacle_1_tag"]["receptacle_id_key"]): bus for bus in trees["a"]}
    assert [path for _, path in _peers(buses[1])] == [("CalDigit TS5", "Studio Display")]
    assert [item["_name"] for item in buses[6]["_items"]] == ["TBU405Pro"]
    assert buses[6]["receptacle_1_tag"]["receptacle_status_key"] == "receptacle_connected"
    assert trees["v"] == [{"Thunderbolt": "no_hardware"}]
    found = texts(layout, layout.machine("v"))
    assert "VirtualMac2,1" in found["SPHardwareDataType.json"] and '"number_processors" : 4' in found["SPHardwareDataType.json"]
    assert "en0" in found["hardwareports"] and "Thunderbolt" not in found["hardwareports"]
    assert '"80"' in texts(layout, layout.machine("a"))["SPDisplaysDataType.json"]


def _keys(value: object, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from (found for name, inner in value.items() for found in ([inner] if name == key else _keys(inner, key)))
    if isinstance(value, list):
        yield from (found for inner in value for found in _keys(inner, key))


def test_every_switch_has_an_identity_of_64_bits() -> None:
    layout = plan_layout(parse_fleet(ODD), "loopback")
    for machine in _macs(layout):
        found = list(_keys(thunderbolt(layout, machine), "switch_uid_key"))
        assert all(re.fullmatch("0x[0-9A-F]{16}", uid) for uid in found), found
        assert len(set(found)) == len(found) and (found or machine.machine.mac.virtual)


HUBS = """
machines:
  - {name: one, model: Mac Studio (M4 Max)}
  - {name: two, model: Mac Studio (M4 Max)}
cables:
  - {a: "one:1", b: "two:1", speed: 80, through: [OWC Hub 5]}
  - {a: "one:2", b: "two:2", speed: 40, through: [OWC Hub 4]}
  - {a: "one:3", b: "two:3", speed: 80}
"""


def test_the_hubs_of_a_cable_are_at_its_end_a_and_speak_the_thunderbolt_of_its_speed() -> None:
    layout = plan_layout(parse_fleet(HUBS), "namespaces")
    upstream = {name: {end.port: end.upstream for end in layout.machine(name).ends} for name in ("one", "two")}
    assert upstream == {"one": {1: True, 2: True, 3: False}, "two": {1: False, 2: False, 3: False}}
    buses = thunderbolt(layout, layout.machine("one"))["SPThunderboltDataType"]
    hubs = [item for bus in buses for item in bus.get("_items", ()) if "mode_key" in item and "domain_uuid_key" not in item]
    assert {hub["_name"]: hub["mode_key"] for hub in hubs} == {"OWC Hub 5": "usb_four_v2", "OWC Hub 4": "usb_four"}
    assert {hub["vendor_name_key"] for hub in hubs} == {"OWC"}


def test_idle_ports_say_what_their_thunderbolt_version_can_do() -> None:
    """Ports of the Mac, of hubs in a cable and of docks: 40 Gb/s up to Thunderbolt 4, 120 Gb/s in its fast direction from 5."""
    layout = plan_layout(
        parse_fleet(
            """
machines:
  - {name: five, model: Mac Studio (M4 Max), devices: [{port: 4, kind: dock, name: TS5, speed: 80}]}
  - {name: four, model: Mac mini (M4), devices: [{port: 3, kind: dock, name: TS4, speed: 40}]}
  - {name: far, model: Mac Studio (M4 Max)}
cables:
  - {a: "five:1", b: "far:1", speed: 80, through: [OWC Hub 5]}
  - {a: "four:1", b: "far:2", speed: 40, through: [OWC Hub 4]}
"""
        ),
        "namespaces",
    )

    def idle(name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for bus in thunderbolt(layout, layout.machine(name))["SPThunderboltDataType"]:
            inside = bus.get("_items", [])
            tags = [(item["_name"], tag) for item in [bus, *inside] for key, tag in item.items() if key.endswith("_tag")]
            found |= {item: tag["current_speed_key"] for item, tag in tags if tag["current_speed_key"].startswith("Up to")}
        return found

    assert idle("five") == dict.fromkeys(
        ("thunderboltusb4_bus_1", "thunderboltusb4_bus_2", "TS5", "OWC Hub 5"), "Up to 120 Gb/s"
    )
    assert idle("four") == dict.fromkeys(("thunderboltusb4_bus_1", "TS4", "OWC Hub 4"), "Up to 40 Gb/s")
