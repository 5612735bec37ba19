"""Parsers of macOS commands: output in the shapes of real Macs, and damaged output from Hypothesis."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from thunderfleet_agent.observe.collector import parse_capabilities
from thunderfleet_agent.observe.parsers import hardware, thunderbolt
from thunderfleet_crds.kinds import nodeprofile
from thunderfleet_lib.host.parsing import ParseError, Partial, clean
from thunderfleet_lib.macnet import parse as network
from thunderfleet_lib.rdma import parse as rdma

PARSERS: dict[str, Callable[[str], object]] = {
    "thunderbolt": thunderbolt.parse,
    "hardware": hardware.parse_hardware,
    "displays": hardware.parse_displays,
    "sysctl": hardware.parse_sysctl,
    "sw_vers": hardware.parse_sw_vers,
    "ports": network.parse_hardware_ports,
    "services": network.parse_service_order,
    "ifconfig": network.parse_ifconfig,
    "status": rdma.parse_status,
    "devices": rdma.parse_devices,
    "devinfo": rdma.parse_devinfo,
    "capabilities": parse_capabilities,
}


def never_raises_but_parse_error(parse: Callable[[str], object], text: str) -> None:
    try:
        value = parse(text)
    except ParseError as error:
        assert error.command and error.command in str(error)
        return
    # The result can be sent as JSON.
    repr(value).encode()


@pytest.mark.parametrize("name", PARSERS)
@given(text=st.text(max_size=200))
@example(text="")
@example(text="[" * 100_000)
@example(text='{"SPThunderboltDataType": ' + "[{" * 5)
@example(text='{"SPThunderboltDataType": [{"_name": "\\ud800", "receptacle_1_tag": {"receptacle_id_key": "1"}}]}')
@example(text='{"SPHardwareDataType": [{"physical_memory": 1e400, "chip_type": {}, "number_processors": []}]}')
@example(text="hw.memsize: " + "9" * 5000)
def test_garbage_is_a_parse_error_at_most(name: str, text: str) -> None:
    never_raises_but_parse_error(PARSERS[name], text)


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_a_truncated_or_mixed_up_output_is_a_parse_error_at_most(name: str, data: st.DataObject, shapes: Any) -> None:
    text = data.draw(st.sampled_from(shapes.texts))
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(0, len(text)))
    never_raises_but_parse_error(PARSERS[name], text[:end] + data.draw(st.text(max_size=5)) + text[begin:])


json_values: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.lists(json_values, max_size=3)
        | st.dictionaries(st.text(max_size=5), json_values, max_size=3)
    )
)
keys = st.sampled_from(
    (
        "_items",
        "_name",
        "domain_uuid_key",
        "switch_uid_key",
        "receptacle_1_tag",
        "receptacle_2_tag",
        "receptacle_upstream_ambiguous_tag",
        "receptacle_id_key",
        "current_speed_key",
        "receptacle_status_key",
    )
)
odd_trees: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        json_values
        | st.sampled_from(("80 Gb/s", "1", "receptacle_connected", "356546FE-F080-4947-8EF8-CB3D9ECB71DF"))
        | st.lists(odd_trees, max_size=4)
        | st.dictionaries(keys, odd_trees, max_size=6)
    )
)


@given(tree=st.lists(odd_trees, max_size=4))
def test_thunderbolt_survives_any_json_under_known_keys(tree: list[object]) -> None:
    found = thunderbolt.parse(json.dumps({"SPThunderboltDataType": tree}))
    numbers = [port.receptacle for port in found.ports]
    assert len(set(numbers)) == len(numbers)
    for port in found.ports:
        uuids = [peer.domain_uuid.lower() for peer in port.peers]
        assert len(set(uuids)) == len(uuids)


def test_ports_come_by_receptacle_with_their_peer(shapes: Any) -> None:
    first, second = thunderbolt.parse(shapes.tree).ports
    assert (first.receptacle, first.domain_uuid, first.connected, first.speed_mbps) == (1, shapes.mine, True, 80_000)
    assert first.peers == (thunderbolt.Peer(shapes.theirs, "Mac Studio", (), 80_000),)
    assert (second.receptacle, second.connected, second.speed_mbps, second.peers) == (2, False, None, ())


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_peer_is_found_behind_any_number_of_hubs(depth: int, shapes: Any) -> None:
    item = shapes.peer(shapes.theirs)
    for level in reversed(range(depth)):
        item = shapes.hub(f"hub {level}", item)
    (port,) = thunderbolt.parse(shapes.report(shapes.bus(1, domain=shapes.mine, speed="80 Gb/s", items=[item]))).ports
    assert [peer.through for peer in port.peers] == [tuple(f"hub {level}" for level in range(depth))]


def test_a_slow_hub_slows_the_way_to_the_peer_and_not_the_port(shapes: Any) -> None:
    slow = shapes.hub("dock", shapes.peer(shapes.theirs), up="80 Gb/s", down="40 Gb/s")
    (port,) = thunderbolt.parse(shapes.report(shapes.bus(1, domain=shapes.mine, speed="80 Gb/s", items=[slow]))).ports
    assert port.speed_mbps == 80_000
    assert port.peers[0].speed_mbps == 40_000


def test_a_slow_drive_beside_the_peer_does_not_slow_the_way_to_it(shapes: Any) -> None:
    """The dock does not list the downlink to the peer, or its speed cannot be parsed."""
    dock = shapes.hub("dock", shapes.peer(shapes.theirs), shapes.hub("drive", up="10 Gb/s"), down="10 Gb/s")
    unread = shapes.hub("dock", shapes.peer(shapes.theirs), down="10 Gb/s")
    unread["receptacle_3_tag"] |= {"current_speed_key": "schnell", "receptacle_status_key": "receptacle_connected"}
    for item in (dock, unread):
        (port,) = thunderbolt.parse(shapes.report(shapes.bus(1, domain=shapes.mine, speed="80 Gb/s", items=[item]))).ports
        assert [peer.speed_mbps for peer in port.peers] == [80_000]


def test_buses_one_level_deeper_are_the_same_buses(shapes: Any) -> None:
    whole = json.loads(shapes.tree)["SPThunderboltDataType"]
    wrapped = shapes.report({"_name": "thunderbolt", "_items": whole})
    assert thunderbolt.parse(wrapped) == thunderbolt.parse(shapes.tree)


def test_several_peers_on_one_bus(shapes: Any) -> None:
    other = "59C97EA5-69DF-4209-82D8-4B84C2A41FDF"
    items = [shapes.hub("dock", shapes.peer(shapes.theirs), shapes.peer(other))]
    (port,) = thunderbolt.parse(shapes.report(shapes.bus(1, domain=shapes.mine, speed="80 Gb/s", items=items))).ports
    assert {peer.domain_uuid for peer in port.peers} == {shapes.theirs, other}


def test_drives_and_displays_are_no_peers(shapes: Any) -> None:
    (port,) = thunderbolt.parse(
        shapes.report(shapes.bus(1, domain=shapes.mine, speed="40 Gb/s", items=[shapes.hub("Studio Display")]))
    ).ports
    assert port.connected and not port.peers


@pytest.mark.parametrize(
    ("text", "mbps"),
    [
        ("80 Gb/s", 80_000),
        ("120/40 Gb/s", 120_000),
        ("40 Gb/s", 40_000),
        ("20 Gb/s x2", 40_000),
        ("40 Gb/s x1", 40_000),
        ("40 Gb/s x2", 40_000),
        ("80 Gb/s x1", 80_000),
        ("40 Gb/s / 120 Gb/s", 120_000),
        ("80 GBit/s", 80_000),
        ("2,5 Gb/s", 2_500),
        ("480 Mb/s", 480),
        ("Up to 120 Gb/s", None),
        ("Up to 40 Gb/s x1", None),
        ("fast", None),
        (80, None),
        (None, None),
    ],
)
def test_speed_is_what_was_negotiated(text: object, mbps: int | None) -> None:
    assert thunderbolt.speed_mbps(text) == mbps


def test_keys_that_older_and_trimmed_reports_lack(shapes: Any) -> None:
    section = {
        "_items": [{"_items": [{"_name": "MacBook Pro", "domain_uuid_key": shapes.theirs}], "_name": "dock"}],
        "domain_uuid_key": shapes.mine,
        "receptacle_1_tag": {"current_speed_key": "80 Gb/s", "receptacle_id_key": "2"},
    }
    (port,) = thunderbolt.parse(shapes.report(section)).ports
    assert (port.receptacle, port.connected, port.speed_mbps, port.switch_uid) == (2, True, 80_000, None)
    assert port.peers == (thunderbolt.Peer(shapes.theirs, "MacBook Pro", ("dock",), 80_000),)


@pytest.mark.parametrize("sections", [[], [{"Thunderbolt": "no_hardware"}]])
def test_no_thunderbolt_is_no_port_and_no_problem(sections: list[Any]) -> None:
    assert thunderbolt.parse(json.dumps({"SPThunderboltDataType": sections})) == thunderbolt.Thunderbolt()


def test_buses_behind_a_section_without_hardware_are_found(shapes: Any) -> None:
    bus = shapes.bus(1, domain=shapes.mine)
    found = thunderbolt.parse(shapes.report({"Thunderbolt": "no_hardware"}, bus))
    assert found == thunderbolt.parse(shapes.report(bus))
    assert [port.receptacle for port in found.ports] == [1]


def test_what_is_seen_through_a_port_is_plugged_into_it_whatever_its_status_is_called(shapes: Any) -> None:
    """A single item may appear without a list."""
    dock = shapes.bus(1, domain=shapes.mine, items=[shapes.hub("dock")])
    dock["receptacle_1_tag"]["receptacle_status_key"] = "receptacle_in_use"
    mac = {**shapes.bus(2, domain=shapes.mine_too, speed="80 Gb/s"), "_items": shapes.peer(shapes.theirs)}
    first, second = thunderbolt.parse(shapes.report(dock, mac)).ports
    assert (first.connected, first.speed_mbps, first.peers) == (True, None, ())
    assert [peer.domain_uuid for peer in second.peers] == [shapes.theirs]


def test_an_invalid_part_is_dropped_and_reported(shapes: Any) -> None:
    lost = shapes.bus(2, domain=shapes.mine_too)
    del lost["receptacle_1_tag"]["receptacle_id_key"]
    found = thunderbolt.parse(shapes.report(lost, shapes.bus(1, domain=shapes.mine), shapes.bus(1, domain=shapes.mine_too)))
    assert [port.receptacle for port in found.ports] == [1]
    assert found.problems == ("thunderboltusb4_bus_1 has no receptacle number", "receptacle 1 is listed twice")


def test_hardware_and_system(shapes: Any) -> None:
    assert hardware.parse_hardware(shapes.hardware) == hardware.Hardware("Mac15,14", "Apple M3 Ultra", 28, 96 * 2**30)
    virtual = '{"SPHardwareDataType": [{"machine_model": "VirtualMac2,1", "number_processors": 2, "physical_memory": "4 GB"}]}'
    assert hardware.parse_hardware(virtual) == hardware.Hardware("VirtualMac2,1", None, 2, 4 * 2**30)
    large = '{"SPHardwareDataType": [{"machine_model": "MacPro7,1", "physical_memory": "1.5 TB"}]}'
    assert hardware.parse_hardware(large).memory_bytes == 3 * 2**39
    assert hardware.whole_number(hardware.parse_sysctl(shapes.sysctl), "hw.memsize") == 103079215104
    assert hardware.parse_sysctl(shapes.sysctl.replace(": ", " = ")) == hardware.parse_sysctl(shapes.sysctl)
    assert hardware.parse_sw_vers("ProductVersion: 26.3\nBuildVersion: 25D125\n") == hardware.System("26.3", "25D125")


@pytest.mark.parametrize("key", ["chip_type", "cpu_type"])
def test_long_texts_are_cut_to_what_the_api_takes(key: str, shapes: Any) -> None:
    told = {"machine_model": "m" * 100, key: "c" * 100}
    found = hardware.parse_hardware(json.dumps({"SPHardwareDataType": [told]}))
    assert found == hardware.Hardware("m" * 63 + "…", "c" * 63 + "…")
    assert nodeprofile.Hardware(model_identifier=found.model_identifier, chip=found.chip).chip == found.chip
    nameless = {**shapes.bus(1, domain=shapes.mine), "_name": "b" * 100}
    del nameless["receptacle_1_tag"]["receptacle_id_key"]
    assert thunderbolt.parse(shapes.report(nameless)).problems == (f"{'b' * 63}… has no receptacle number",)


@pytest.mark.parametrize(
    ("cores", "known"),
    [
        (0, None),
        (1, 1),
        (9999, 9999),
        (10_000, None),
        (-1, None),
        (True, None),
        ("proc 28:20:8:0", 28),
        ("0", None),
        ("x", None),
    ],
)
def test_cores_are_from_one_to_9999(cores: object, known: int | None) -> None:
    text = json.dumps({"SPHardwareDataType": [{"machine_model": "Mac15,14", "chip_type": "Apple M3", "number_processors": cores,
                                               "physical_memory": "96 GB"}]})  # fmt: skip
    found: object
    try:
        found = hardware.parse_hardware(text)
    except Partial as error:
        found = error.value
    assert isinstance(found, hardware.Hardware) and found.cpu_cores == known


def test_a_variable_is_a_whole_number_that_the_api_can_hold() -> None:
    for text, number in (
        ("0", 0), (str(2**63 - 1), 2**63 - 1), (str(2**63), None), (str(2**64), None), ("-1", None), ("1.5", None), ("", None),
    ):  # fmt: skip
        assert hardware.whole_number({"hw.memsize": text}, "hw.memsize") == number
    assert hardware.whole_number({}, "hw.memsize") is None


def test_hardware_ports_and_services(shapes: Any) -> None:
    ports = network.parse_hardware_ports(shapes.ports)
    assert ports["en2"] == "Thunderbolt 1" and ports["bridge0"] == "Thunderbolt Bridge"
    services = network.parse_service_order(shapes.services)
    assert [(service.name, service.enabled, service.device) for service in services] == [
        ("Ethernet", True, "en0"),
        ("Thunderbolt Bridge", True, "bridge0"),
        ("Old one", False, "en1"),
    ]


def test_interfaces(shapes: Any) -> None:
    found = {interface.name: interface for interface in network.parse_ifconfig(shapes.ifconfig)}
    assert found["en0"].speed_mbps == 10_000 and found["en0"].up
    assert [a.address for a in found["en0"].addresses] == ["fe80::4ff:feea:4e40", "192.168.64.11"]
    assert found["en2"].addresses == (network.InterfaceAddress("10.0.1.1", 30),)
    assert not found["en3"].up
    assert found["utun4"].up


@pytest.mark.parametrize(
    ("media", "mbps"),
    [("1000baseT <full-duplex>", 1000), ("2500Base-T", 2500), ("2.5Gbase-T", 2500), ("10Gbase-T", 10_000), ("none", None)],
)
def test_media_say_the_speed(media: str, mbps: int | None) -> None:
    (found,) = network.parse_ifconfig(f"en0: flags=8863<UP> mtu 1500\n\tmedia: autoselect ({media})\n\tstatus: active\n")
    assert found.speed_mbps == mbps


def test_an_address_may_bring_its_prefix_along() -> None:
    (found,) = network.parse_ifconfig("en0: flags=8863<UP> mtu 1500\n\tinet 10.0.0.1/30 broadcast 10.0.0.3\n")
    assert found.addresses == (network.InterfaceAddress("10.0.0.1", 30),)


def test_bridge_members_however_the_line_after_them_is_laid_out() -> None:
    text = (
        "bridge0: flags=8863<UP,BROADCAST> mtu 1500\n...\n    member: en2 flags=3<LEARNING,DISCOVER>\n"
        "            ifmaxaddr 0 port 11 priority 0 path cost 0\n\tmember: en3 flags=3<LEARNING,DISCOVER>\n"
        "            ifmaxaddr 0port 12 priority 0\n    status: active\n"
    )
    (bridge,) = network.parse_ifconfig(text)
    assert bridge.members == ("en2", "en3") and bridge.active


def test_rdma(shapes: Any) -> None:
    assert rdma.parse_status("enabled\n") is True
    assert rdma.parse_status("RDMA is disabled.\n") is False
    assert rdma.parse_devices(shapes.devices) == ("rdma_en2", "rdma_en3")
    assert rdma.parse_devices(shapes.no_devices) == ()
    assert rdma.parse_devices(shapes.no_devices + "    rdma_en5\t\tc03b:3b8f:e481:ac05\n") == ("rdma_en5",)
    assert rdma.parse_devinfo("No IB devices found\n") == ()
    assert rdma.parse_devinfo(shapes.devinfo_text) == (
        rdma.DeviceInfo("rdma_en2", "PORT_ACTIVE", "::ffff:10.0.1.1"),
        rdma.DeviceInfo("rdma_en3", "PORT_DOWN", None),
    )
    for text in ("", "segmentation fault", "enabled or disabled?", "RDMA enabled: no"):
        with pytest.raises(ParseError, match="rdma_ctl status"):
            rdma.parse_status(text)


def test_devinfo_with_lines_run_together_and_a_gid_in_full() -> None:
    text = "hca_id:    rdma_en2 transport:   Thunderbolt (100) port:    1 state:     PORT_ACTIVE (4)\n"
    text += " GID[  0]:   fe80:0000:0000:0000:0000:0000:0000:0001\n GID[  1]:   0000:0000:0000:0000:0000:ffff:a9fe:cdff\n"
    assert rdma.parse_devinfo(text) == (rdma.DeviceInfo("rdma_en2", "PORT_ACTIVE", "::ffff:169.254.205.255"),)


@given(value=st.text(alphabet=st.characters(), max_size=80), limit=st.integers(1, 64))
def test_clean_text_fits_and_encodes(value: str, limit: int) -> None:
    text = clean(value, limit)
    assert text is None or (0 < len(text) <= limit and text.encode() and not any(ord(c) < 32 for c in text))


# By parser, texts in which every truncation within a line must be detected.
LINES = ("sysctl", "sw_vers", "ports", "services", "ifconfig", "status", "devices", "devinfo")


def text_of(name: str, shapes: Any) -> str:
    whole = {"ports": shapes.ports, "services": shapes.services, "ifconfig": shapes.ifconfig, "sysctl": shapes.sysctl}
    more = {"status": "disabled\n", "devices": shapes.devices, "devinfo": shapes.devinfo_text}
    return str({**whole, **more, "sw_vers": "ProductName:\tmacOS\nProductVersion:\t26.3\nBuildVersion:\t25D125\n"}[name])


@pytest.mark.parametrize("name", LINES)
def test_a_partial_answer_never_counts_as_complete(name: str, shapes: Any) -> None:
    """Output that is truncated within a line raises an error, or nothing is lost."""
    text = text_of(name, shapes)
    whole = PARSERS[name](text)
    for cut in range(len(text)):
        if text[:cut].endswith("\n"):
            continue
        try:
            assert PARSERS[name](text[:cut]) == whole, text[:cut][-60:]
        except ParseError as error:
            assert error.command in str(error)


@pytest.mark.parametrize(
    ("name", "behind"),
    [
        ("sysctl", "hw.memsize: 103079215104\n"),
        ("sw_vers", "ProductVersion:\t26.3\n"),
        ("ports", "Device: en2\n\n"),
        ("ports", "Hardware Port: Thunderbolt 2\n"),
        ("services", "(2) Thunderbolt Bridge\n"),
        ("devices", "node GUID\n"),
        ("devinfo", "hca_id:\trdma_en3\n"),
        ("devinfo", "state:\t\t\tPORT_DOWN (1)\n"),
    ],
)
def test_an_answer_that_ends_between_two_lines_shows_too(name: str, behind: str, shapes: Any) -> None:
    text = text_of(name, shapes)
    with pytest.raises(ParseError):
        PARSERS[name](text[: text.index(behind) + len(behind)])


def test_a_service_list_that_ends_after_a_name_keeps_the_whole_services(shapes: Any) -> None:
    whole = network.parse_service_order(shapes.services)
    with pytest.raises(Partial, match="ends after the name of the service Old one") as caught:
        network.parse_service_order(shapes.services[: shapes.services.index("(Hardware Port: Wi-Fi")])
    assert caught.value.value == whole[:2]


def test_output_in_another_language_is_reported_and_not_misread(shapes: Any) -> None:
    idle = shapes.bus(1, domain=shapes.mine)
    idle["receptacle_1_tag"] |= {"current_speed_key": "Jusqu\u2019\u00e0 120 Gbit/s", "receptacle_status_key": None}
    busy = shapes.bus(2, domain=shapes.mine_too, speed="80 \u0413\u0431\u0438\u0442/\u0441", items=[shapes.peer(shapes.theirs)])
    found = thunderbolt.parse(shapes.report(idle, busy))
    assert [(port.connected, port.speed_mbps) for port in found.ports] == [(False, None), (True, None)]
    assert len(found.problems) == 2 and all("in an unknown format" in problem for problem in found.problems)
    told = {"machine_model": "Mac15,14", "physical_memory": "96 \u0413\u0411", "number_processors": "28"}
    with pytest.raises(Partial, match="physical_memory") as caught:
        hardware.parse_hardware(json.dumps({"SPHardwareDataType": [told]}))
    assert caught.value.value == hardware.Hardware("Mac15,14", None, 28, None)
    with pytest.raises(Partial, match=r"hw\.memsize: 103\.079\.215\.104"):
        hardware.parse_sysctl(shapes.sysctl.replace("103079215104", "103.079.215.104"))
    german = shapes.ports.replace("VLAN Configurations", "VLAN-Konfigurationen").replace("Wi-Fi", "WLAN")
    assert network.parse_hardware_ports(german)["en1"] == "WLAN"
    with pytest.raises(ParseError, match="Port mat\u00e9riel"):
        network.parse_hardware_ports(shapes.ports.replace("Hardware Port", "Port mat\u00e9riel"))
    for text in ("activ\u00e9\n", "not enabled\n"):
        with pytest.raises(ParseError, match="rdma_ctl status"):
            rdma.parse_status(text)


def test_a_computer_without_a_domain_uuid_is_reported(shapes: Any) -> None:
    anonymous = {"_name": "MacBook Pro", "services_title": [{"_name": "service_ip"}]}
    odd = {**shapes.peer("not-a-uuid"), "_name": "Mac mini"}
    found = thunderbolt.parse(shapes.report(shapes.bus(1, domain=shapes.mine, speed="40 Gb/s", items=[anonymous, odd])))
    assert found.ports[0].connected and not found.ports[0].peers
    assert [problem.split(" has no valid domain UUID")[0] for problem in found.problems] == ["MacBook Pro", "Mac mini"]


def test_a_computer_behind_a_computer_is_found(shapes: Any) -> None:
    far = "59C97EA5-69DF-4209-82D8-4B84C2A41FDF"
    near = {**shapes.peer(shapes.theirs, "Mac mini"), "_items": [shapes.peer(far)]}
    (port,) = thunderbolt.parse(shapes.report(shapes.bus(1, domain=shapes.mine, speed="80 Gb/s", items=[near]))).ports
    assert {peer.domain_uuid: peer.through for peer in port.peers} == {shapes.theirs: (), far: ("Mac mini",)}


def test_gpu_cores() -> None:
    def parse(*sections: object) -> int:
        return hardware.parse_displays(json.dumps({"SPDisplaysDataType": sections}))

    assert parse({"_name": "Apple M3 Ultra", "sppci_cores": "60"}) == 60
    assert parse({"_name": "a screen"}, {"sppci_cores": 32}) == 32
    assert parse() == parse({"_name": "Display"}) == 0
    with pytest.raises(ParseError, match="SPDisplaysDataType"):
        parse({"sppci_cores": "many"})
