"""Output of ``system_profiler SPThunderboltDataType -json``: buses, receptacles, and the devices behind them.

A Mac shows a peer by the domain UUID of the peer's port, at any depth: behind a hub on the upstream side one level deeper,
on the downstream side as if there were no hub. An idle port reports "Up to …", a connected one its negotiated speed.
"""

import hashlib
from typing import Any

from thunderfleet_localcluster.fleet.catalogue import TB4_GBPS
from thunderfleet_localcluster.fleet.layout import CableEnd, Layout, MachineLayout, port_uuid, switch_uid
from thunderfleet_localcluster.fleet.spec import Device

Json = dict[str, Any]

CONNECTED, IDLE = "receptacle_connected", "receptacle_no_devices_connected"
OLD_KEYS_BEFORE = 15
"""macOS before this version also printed the width of an idle link."""


def domain_uuid(machine: MachineLayout, port: int) -> str:
    """Domain UUID of a port of a machine; another one after a reboot."""
    return port_uuid(machine.name, port, "domain" + (f"/{machine.boots}" if machine.boots else ""))


def thunderbolt(layout: Layout, machine: MachineLayout) -> Json:
    """The whole report of one Mac."""
    if machine.machine.mac.virtual:
        return {"SPThunderboltDataType": [{"Thunderbolt": "no_hardware"}]}
    ports = range(machine.machine.mac.ports, 0, -1)
    return {"SPThunderboltDataType": [_bus(layout, machine, port) for port in ports]}


def _bus(layout: Layout, machine: MachineLayout, port: int) -> Json:
    model, end = machine.machine.mac, machine.end(port)
    receptacle: Json = {
        "current_speed_key": f"Up to {model.max_gbps} Gb/s",
        "link_status_key": "0x7" if model.product == "Mac mini" else "0x100",
        "receptacle_id_key": str(port),
        "receptacle_status_key": IDLE,
    }
    bus: Json = {
        "_name": f"thunderboltusb4_bus_{port - 1}",
        "device_name_key": model.product,
        "domain_uuid_key": domain_uuid(machine, port),
        "receptacle_1_tag": receptacle,
        "route_string_key": "0",
        "switch_uid_key": switch_uid(machine.name, port),
        "vendor_name_key": "Apple Inc.",
    }
    device = next((device for device in machine.machine.devices if device.port == port), None)
    if end is None and device is not None:
        receptacle |= {
            "current_speed_key": f"{device.gbps} Gb/s",
            "link_status_key": "0x2",
            "receptacle_status_key": CONNECTED,
        }
        bus["_items"] = [_device(device, f"{machine.name}/{port}")]
        return bus
    if end is None:
        if model.thunderbolt == 4 and int(machine.machine.os.split(".")[0]) < OLD_KEYS_BEFORE:
            receptacle |= {"current_link_width_key": "0x1", "current_speed_key": f"Up to {model.max_gbps} Gb/s x1"}
        return bus
    receptacle |= {
        "current_speed_key": speed_text(end),
        "link_status_key": "0x2",
        "micro_version_key": "0.0.0",
        "receptacle_status_key": CONNECTED,
    }
    seen = [_peer(layout, end)] if end.sees_peer else []
    if end.upstream:
        for name in reversed(end.cable.through):
            seen = [_hub(end, name, seen)]
        bus["_items"] = seen
    else:
        bus["_items"] = seen or [_device(Device(port=port, kind="display", name="Studio Display"), f"{end.index}", end)]
    return bus


def speed_text(end: CableEnd) -> str:
    """The negotiated speed as macOS writes it. For an asymmetric link, this is the faster direction."""
    return f"{end.cable.gbps} Gb/s"


def _peer(layout: Layout, end: CableEnd) -> Json:
    peer = layout.machine(end.peer).machine
    services: list[Json] = [
        {
            "_name": "service_ip",
            "protocol_id_key": 1,
            "protocol_revision_key": 1,
            "protocol_version_key": 1,
            "service_uuid_key": port_uuid(end.peer, end.peer_port, "service_ip"),
        }
    ]
    if peer.rdma and peer.mac.thunderbolt == 5:
        services.append(
            {
                "_name": "unknown_xd_service",
                "protocol_id_key": 64087,
                "protocol_revision_key": 0,
                "protocol_version_key": 1,
                "service_key_key": "ˇˇˇˇˇˇAD",
                "service_uuid_key": port_uuid(end.peer, end.peer_port, "xd_service"),
            }
        )
    return {
        "_name": peer.mac.product,
        "device_id_key": "0xA",
        "device_name_key": peer.mac.identifier,
        "domain_uuid_key": domain_uuid(layout.machine(end.peer), end.peer_port),
        "services_title": services,
        "vendor_id_key": "0x0A27",
        "vendor_name_key": "Apple Inc.",
    }


def _hub(end: CableEnd, name: str, seen: list[Json]) -> Json:
    fast = end.cable.gbps > 40
    most = 120 if fast else 40
    connected: Json = {
        "current_speed_key": speed_text(end),
        "link_status_key": "0x2",
        "micro_version_key": "1.9.0",
        "receptacle_status_key": CONNECTED,
    }
    idle = {**connected, "current_speed_key": f"Up to {most} Gb/s", "link_status_key": "0x7", "receptacle_status_key": IDLE}
    hub: Json = {
        "_name": name,
        "device_id_key": "0x1",
        "device_name_key": name,
        "device_revision_key": "0x1",
        "mode_key": "usb_four_v2" if fast else "usb_four",
        "receptacle_2_tag": dict(connected),
        "receptacle_3_tag": dict(idle),
        "receptacle_4_tag": dict(idle),
        "receptacle_upstream_ambiguous_tag": dict(connected),
        "route_string_key": "1",
        "switch_uid_key": "0x" + hashlib.sha256(f"{name}/{end.index}".encode()).hexdigest()[:16].upper(),
        "switch_version_key": "62.1",
        "vendor_id_key": "0x0001",
        "vendor_name_key": name.split(" ")[0],
    }
    if seen:
        hub["_items"] = seen
    return hub


def _device(device: Device, where: str, hides: CableEnd | None = None) -> Json:
    """A dock, display or drive. One that hides a peer shows itself and nothing behind it, at its cable's speed."""
    speed = f"{(hides.cable if hides else device).gbps} Gb/s"
    connected: Json = {"current_speed_key": speed, "link_status_key": "0x2", "receptacle_status_key": CONNECTED}
    fast = device.gbps > TB4_GBPS
    found: Json = {
        "_name": device.name,
        "device_id_key": {"display": "0x801F", "dock": "0x501", "drive": "0x1"}[device.kind],
        "device_name_key": device.name,
        "device_revision_key": "0x1",
        "mode_key": "usb_four_v2" if fast else "thunderbolt_three",
        "receptacle_upstream_ambiguous_tag": {**connected, "lc_version_key": "1.45.0"},
        "route_string_key": "1",
        "switch_uid_key": "0x" + hashlib.sha256(f"{device.kind}/{where}".encode()).hexdigest()[:16].upper(),
        "switch_version_key": "67.1",
        "vendor_id_key": "0x0001",
        "vendor_name_key": "Apple Inc." if device.kind == "display" else device.name.split(" ")[0],
    }
    if device.kind == "dock":
        most = f"Up to {120 if fast else TB4_GBPS} Gb/s"
        idle = {"current_speed_key": most, "link_status_key": "0x7", "receptacle_status_key": IDLE}
        found |= {f"receptacle_{number}_tag": dict(idle) for number in (2, 3, 4)}
    return found
