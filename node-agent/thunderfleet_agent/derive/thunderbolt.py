"""Thunderbolt ports and RDMA devices."""

from __future__ import annotations

from collections.abc import Mapping

from thunderfleet_crds.kinds.nodeprofile import RDMADevice, ThunderboltPeer, ThunderboltPort
from thunderfleet_crds.vocabulary import RDMADeviceState
from thunderfleet_lib.rdma.parse import DeviceInfo, port_state
from thunderfleet_lib.rdma.rules import interface_of

from thunderfleet_agent.derive.network import port_interfaces
from thunderfleet_agent.observe.facts import Facts

MAX_PORTS = 16
MAX_DEVICES = 16


def ports(facts: Facts, devices: Mapping[str, str]) -> tuple[ThunderboltPort, ...]:
    """The ports, by receptacle. ``devices`` maps an interface to its RDMA device."""
    interfaces = port_interfaces(facts)
    found = []
    for port in (facts.thunderbolt.ports if facts.thunderbolt else ())[:MAX_PORTS]:
        interface = interfaces.get(port.receptacle)
        peers = sorted(port.peers, key=lambda peer: peer.domain_uuid)
        found.append(
            ThunderboltPort(
                receptacle=port.receptacle,
                switch_uid=port.switch_uid,
                interface=interface,
                rdma_device=devices.get(interface) if interface else None,
                connected=port.connected,
                speed_mbps=port.speed_mbps,
                domain_uuid=port.domain_uuid,
                peers=tuple(
                    ThunderboltPeer(domain_uuid=p.domain_uuid, name=p.name, speed_mbps=p.speed_mbps, through=p.through)
                    for p in peers
                ),
            )
        )
    return tuple(found)


def rdma_devices(facts: Facts) -> tuple[RDMADevice, ...]:
    """The devices that `ibv_devices` lists, with state and GID from `ibv_devinfo`."""
    info = {device.name: device for device in facts.rdma_info or ()}
    devices = []
    for name in sorted(set(facts.rdma_devices or ()))[:MAX_DEVICES]:
        described = info.get(name)
        state, gid = (described.state, described.gid) if described else (None, None)
        devices.append(RDMADevice(name=name, interface=interface_of(name), state=port_state(state), gid=gid))
    return tuple(devices)


def address_without_gid(device: DeviceInfo, facts: Facts) -> str | None:
    """The IPv4 address of an Active device's interface, if the device has no GID mapped from an IPv4 address.

    `ibv_devinfo` and `ifconfig` contradict each other then: the list of GIDs broke off, or the stack has not noticed the
    address.
    """
    if device.gid is not None or port_state(device.state) is not RDMADeviceState.ACTIVE:
        return None
    name = interface_of(device.name)
    addresses = (a.address for i in facts.interfaces or () if i.name == name and i.up for a in i.addresses)
    return next((address for address in addresses if ":" not in address), None)
