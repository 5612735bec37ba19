"""A recorded Mac's layout under the network settings that its own commands have changed. Pure."""

from dataclasses import replace
from ipaddress import IPv4Address

from thunderfleet_localcluster.fleet.layout import Address, CableEnd, MachineLayout, mac_address
from thunderfleet_localcluster.fleet.network_settings import BRIDGE, BRIDGE_PORT, NetworkSettings, Service

LINK_LOCAL_PREFIX = 16


def hardware_ports(machine: MachineLayout) -> dict[str, str]:
    """Device by hardware port, in the order of ``networksetup -listallhardwareports`` without the bridge."""
    mac = machine.machine.mac
    ports = dict(mac.interfaces)
    return ports | {f"Thunderbolt {number}": device for number, device in enumerate(mac.thunderbolt_interfaces, 1)}


def initial(machine: MachineLayout) -> NetworkSettings:
    """The settings that the fleet file gives a Mac."""
    mac, bridged = machine.machine.mac, machine.machine.bridge
    services = [Service(port, port, device, given=True) for port, device in mac.interfaces]
    services = [one for one in services if not one.name.startswith("Ethernet Adapter")]
    if bridged:
        services.insert(1, Service(BRIDGE_PORT, BRIDGE_PORT, BRIDGE, given=True))
    for number, device in enumerate(mac.thunderbolt_interfaces, 1):
        # A port that is no member of the bridge needs a service of its own to have an address.
        if number not in bridged:
            services.append(Service(f"Thunderbolt {number}", f"Thunderbolt {number}", device, given=True))
    devices = tuple(mac.thunderbolt_interfaces[number - 1] for number in bridged)
    return NetworkSettings(tuple(services), devices, devices)


def link_local(machine: str, device: str) -> Address:
    """The address that macOS assigns itself where no DHCP server answers."""
    octets = [int(part, 16) for part in mac_address(machine, device).split(":")]
    return Address(IPv4Address(f"169.254.{1 + octets[4] % 254}.{octets[5]}"), LINK_LOCAL_PREFIX)


def effective(machine: MachineLayout, settings: NetworkSettings) -> MachineLayout:
    """The Mac with the bridge members and port addresses from its settings."""
    members = tuple(
        number for number, device in enumerate(machine.machine.mac.thunderbolt_interfaces, 1) if device in settings.members
    )
    return replace(
        machine,
        machine=machine.machine.model_copy(update={"bridge": members}),
        ends=tuple(replace(end, address=_address(machine, end, settings)) for end in machine.ends),
        settings=settings,
    )


def bridge_address(machine: MachineLayout) -> Address | None:
    """The address of the bridge: it has one while its service is enabled and a member has a cable."""
    enabled = (machine.settings or initial(machine)).service_of(BRIDGE) is not None
    carrier = any(end.port in machine.machine.bridge for end in machine.ends)
    if machine.machine.bridge_address is None or not enabled or not carrier:
        return None
    return Address(IPv4Address(machine.machine.bridge_address), LINK_LOCAL_PREFIX)


def _address(machine: MachineLayout, end: CableEnd, settings: NetworkSettings) -> Address | None:
    if end.interface in settings.members:
        return None
    if end.interface in settings.inet:
        by_hand = settings.inet[end.interface]
        return Address(by_hand.ip, by_hand.network.prefixlen)
    service = settings.service_of(end.interface)
    if service is None or service.off:
        return None
    if service.given:
        return end.address
    if service.manual is not None:
        return Address(service.manual.ip, service.manual.network.prefixlen)
    return link_local(machine.name, end.interface)
