"""Output of ``ibv_devices``, ``ibv_devinfo`` and ``rdma_ctl status``.

Only a Thunderbolt 5 Mac whose switch is on lists devices; a device is Active when its cable runs faster than 40 Gb/s and the
Mac at the other end has its own switch on. JACCL needs the IPv4-mapped GID, which a port has only with an IPv4 address.
"""

import hashlib
from dataclasses import dataclass

from thunderfleet_localcluster.fleet.layout import Address, Layout, MachineLayout, link_local, mac_address

NO_DEVICES_OUTPUT = "No IB devices found\n"
HEAD = "    device          \t   node GUID\n    ------          \t----------------\n"


@dataclass(frozen=True)
class Device:
    """One RDMA device; ``number`` counts a Mac's ports from 1."""

    name: str
    number: int
    guid: str
    image_guid: str
    active: bool
    ether: str
    address: Address | None


def _guid(machine: str, number: int) -> str:
    digest = hashlib.sha256(f"guid/{machine}".encode()).hexdigest()
    return f"{0xC0 + number - 1:02x}{digest[:10]}ac05"


def devices(layout: Layout, machine: MachineLayout) -> list[Device]:
    """The devices that this Mac lists."""
    mac = machine.machine.mac
    if not machine.machine.rdma or mac.thunderbolt < 5:
        return []
    found = []
    for number, interface in enumerate(mac.thunderbolt_interfaces, 1):
        end = machine.end(number)
        peer = layout.machine(end.peer).machine if end else None
        active = end is not None and peer is not None and peer.rdma and peer.mac.thunderbolt == 5 and end.cable.gbps > 40
        found.append(
            Device(
                f"rdma_{interface}",
                number,
                _guid(machine.name, number),
                _guid(machine.name, 1),
                active,
                mac_address(machine.name, interface),
                end.address if end else None,
            )
        )
    return found


def ibv_devices(found: list[Device]) -> str:
    """``ibv_devices``."""
    return HEAD + "".join(f"    {device.name:<16}\t{device.guid}\n" for device in found)


def _colons(guid: str) -> str:
    return ":".join(guid[i : i + 4] for i in range(0, 16, 4))


def ibv_devinfo(device: Device, *, verbose: bool) -> str:
    """``ibv_devinfo`` (``-v``) of one device."""
    lines = [
        f"hca_id:\t{device.name}",
        "\ttransport:\t\t\tThunderbolt (100)",
        f"\tnode_guid:\t\t\t{_colons(device.guid)}",
        f"\tsys_image_guid:\t\t\t{_colons(device.image_guid)}",
        "\tvendor_id:\t\t\t0x0000",
        "\tvendor_part_id:\t\t\t0",
        "\thw_ver:\t\t\t\t0x0",
        "\tphys_port_cnt:\t\t\t1",
    ]
    if verbose:
        lines += [
            "\tmax_mr_size:\t\t\t0xfa0000",
            "\tmax_qp:\t\t\t\t3",
            "\tatomic_cap:\t\t\tATOMIC_NONE (0)",
            "\tmax_mr:\t\t\t\t100",
        ]
    lines += [
        "\t\tport:\t1",
        f"\t\t\tstate:\t\t\t{'PORT_ACTIVE (4)' if device.active else 'PORT_DOWN (1)'}",
        "\t\t\tmax_mtu:\t\t4096 (5)",
        "\t\t\tactive_mtu:\t\t4096 (5)",
        f"\t\t\tsm_lid:\t\t\t{device.number}",
        f"\t\t\tport_lid:\t\t{device.number}",
        "\t\t\tport_lmc:\t\t0x00",
        "\t\t\tlink_layer:\t\tThunderbolt",
    ]
    if verbose:
        lines += [
            "\t\t\tmax_msg_sz:\t\t0x1000000",
            "\t\t\tgid_tbl_len:\t\t1024",
            "\t\t\tactive_width:\t\t8X (4)",
            "\t\t\tactive_speed:\t\t10.0 Gbps (4)",
        ]
        gids = [link_local(device.ether)] if device.active else []
        if device.active and device.address:
            gids.append(f"::ffff:{device.address.ip}")
        lines += [f"\t\t\tGID[{index:>3}]:\t\t{gid}" for index, gid in enumerate(gids)]
    return "\n".join(lines) + "\n\n"
