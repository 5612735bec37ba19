"""Output of the network commands: ``networksetup``, ``ifconfig``, ``netstat -ib``.

Addresses and MAC addresses are those that the machine's namespace really has, interface states those of its cables.
"""

from dataclasses import dataclass

from thunderfleet_localcluster.fleet.layout import Address, MachineLayout, link_local, mac_address
from thunderfleet_localcluster.fleet.network_settings import BRIDGE, BRIDGE_PORT, NetworkSettings, Service
from thunderfleet_localcluster.fleet.own_settings import bridge_address, initial

ACTIVE = "8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST>"
INACTIVE = "8822<BROADCAST,SMART,SIMPLEX,MULTICAST>"


@dataclass(frozen=True)
class Interface:
    """One interface of a Mac: its hardware port, kind, carrier and address."""

    device: str
    port: str
    thunderbolt: bool
    active: bool
    address: Address | None
    ether: str
    bridged: bool = False


def interfaces(machine: MachineLayout) -> list[Interface]:
    """All interfaces with a hardware port, in the order of ``networksetup -listallhardwareports``."""
    found = []
    for port, device in machine.machine.mac.interfaces:
        lan = device == "en0"
        address = machine.lan if lan and machine.lan_leased else None
        carrier = lan and machine.lan_plugged
        found.append(Interface(device, port, False, carrier, address, mac_address(machine.name, device)))
    for number, device in enumerate(machine.machine.mac.thunderbolt_interfaces, 1):
        end = machine.end(number)
        found.append(
            Interface(
                device,
                f"Thunderbolt {number}",
                True,
                end is not None,
                end.address if end else None,
                mac_address(machine.name, device),
                number in machine.machine.bridge,
            )
        )
    return found


def has_bridge(machine: MachineLayout) -> bool:
    """Whether this Mac has a Thunderbolt Bridge."""
    return bool(machine.machine.bridge) or any(one.device == BRIDGE for one in _settings(machine).services)


def hardware_ports(machine: MachineLayout) -> str:
    """``networksetup -listallhardwareports``."""
    blocks = [(item.port, item.device, item.ether) for item in interfaces(machine)]
    if has_bridge(machine):
        blocks.insert(1, (BRIDGE_PORT, BRIDGE, mac_address(machine.name, BRIDGE)))
    text = "".join(f"\nHardware Port: {port}\nDevice: {device}\nEthernet Address: {ether}\n" for port, device, ether in blocks)
    return text + "\nVLAN Configurations\n===================\n"


def _settings(machine: MachineLayout) -> NetworkSettings:
    return machine.settings or initial(machine)


def services(machine: MachineLayout) -> tuple[Service, ...]:
    """Every network service, in order."""
    return _settings(machine).services


def service_info(machine: MachineLayout) -> dict[str, str]:
    """What ``networksetup -getinfo`` prints, by service."""
    by_device = {item.device: item for item in interfaces(machine)}
    return {service.name: _info(service, by_device.get(service.device)) for service in services(machine)}


def _info(service: Service, item: Interface | None) -> str:
    address = item.address if item else None
    manual = service.manual or (address if service.given and item and item.thunderbolt else None)
    if manual is not None:
        lines = ["Manual Configuration", f"IP address: {manual.ip}", f"Subnet mask: {manual.network.netmask}", "Router: (null)"]
    elif service.off:
        lines = []
    else:
        lines = ["DHCP Configuration"]
        if address and service.enabled:
            lines += [f"IP address: {address.ip}", f"Subnet mask: {address.network.netmask}", "Router: (null)"]
        lines.append("Client ID: ")
    lines += ["IPv6: Automatic", "IPv6 IP address: none", "IPv6 Router: none"]
    if item:
        lines.append(f"Ethernet Address: {item.ether}")
    return "\n".join(lines) + "\n"


def service_order(machine: MachineLayout) -> str:
    """``networksetup -listnetworkserviceorder``."""
    blocks = [
        f"({number if one.enabled else '*'}) {one.name}\n(Hardware Port: {one.port}, Device: {one.device})\n"
        for number, one in enumerate(services(machine), 1)
    ]
    return "An asterisk (*) denotes that a network service is disabled.\n" + "\n".join(blocks) + "\n"


def service_list(machine: MachineLayout) -> str:
    """``networksetup -listallnetworkservices``."""
    names = "\n".join(f"{'' if service.enabled else '*'}{service.name}" for service in services(machine))
    return f"An asterisk (*) denotes that a network service is disabled.\n{names}\n"


def ifconfig(machine: MachineLayout) -> dict[str, str]:
    """Interface → what ``ifconfig`` prints of it, in the order of ``ifconfig -a``."""
    texts = {
        "lo0": "lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384\n"
        "\toptions=1203<RXCSUM,TXCSUM,TXSTATUS,SW_TIMESTAMP>\n"
        "\tinet 127.0.0.1 netmask 0xff000000\n"
        "\tinet6 ::1 prefixlen 128\n"
        "\tinet6 fe80::1%lo0 prefixlen 64 scopeid 0x1\n"
        "\tnd6 options=201<PERFORMNUD,DAD>\n"
    }
    for scope, item in enumerate(sorted(interfaces(machine), key=lambda item: int(item.device[2:])), 0xB):
        texts[item.device] = _interface(item, scope)
    if has_bridge(machine):
        texts[BRIDGE] = _bridge(machine)
    return texts


def _interface(item: Interface, scope: int) -> str:
    options = "460<TSO4,TSO6,CHANNEL_IO>" if item.thunderbolt else "6460<TSO4,TSO6,CHANNEL_IO,PARTIAL_CSUM,ZEROINVERT_CSUM>"
    flags = ACTIVE if item.active else INACTIVE
    if item.bridged and item.active:
        flags = "8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST>"
    lines = [f"{item.device}: flags={flags} mtu 1500", f"\toptions={options}", f"\tether {item.ether}"]
    if item.active and not item.bridged:
        lines.append(f"\tinet6 {link_local(item.ether)}%{item.device} prefixlen 64 secured scopeid {scope:#x}")
    if item.address:
        lines.append(_inet(item.address))
    if item.active:
        lines.append("\tnd6 options=201<PERFORMNUD,DAD>")
    lines.append(
        "\tmedia: autoselect <full-duplex>"
        if item.thunderbolt or not item.active
        else "\tmedia: autoselect (10Gbase-T <full-duplex>)"
    )
    lines.append(f"\tstatus: {'active' if item.active else 'inactive'}")
    return "\n".join(lines) + "\n"


def _inet(address: Address) -> str:
    network = address.network
    return f"\tinet {address.ip} netmask {int(network.netmask):#010x} broadcast {network.broadcast_address}"


def _bridge(machine: MachineLayout) -> str:
    members = [item for item in interfaces(machine) if item.bridged]
    active = any(item.active for item in members)
    ether, own = mac_address(machine.name, BRIDGE), bridge_address(machine)
    lines = [
        f"bridge0: flags={ACTIVE if active else INACTIVE} mtu 1500",
        "\toptions=63<RXCSUM,TXCSUM,TSO4,TSO6>",
        f"\tether {ether}",
        *([_inet(own)] if own else []),
        "\tConfiguration:",
        f"\t\tid {ether} priority 0 hellotime 0 fwddelay 0",
        "\t\tmaxage 0 holdcnt 0 proto stp maxaddr 100 timeout 1200",
        f"\t\troot id {ether} priority 0 ifcost 0 port 0",
        "\t\tipfilter disabled flags 0x0",
    ]
    for item in members:
        lines.append(f"\tmember: {item.device} flags=3<LEARNING,DISCOVER>")
        lines.append(f"\t        ifmaxaddr 0 port {int(item.device[2:]) + 9} priority 0 path cost 0")
    lines += ["\tnd6 options=201<PERFORMNUD,DAD>", "\tmedia: <unknown type>", f"\tstatus: {'active' if active else 'inactive'}"]
    return "\n".join(lines) + "\n"


def netstat(machine: MachineLayout) -> str:
    """``netstat -ib`` with all counters at zero."""
    head = "Name       Mtu   Network       Address            Ipkts Ierrs     Ibytes    Opkts Oerrs     Obytes  Coll\n"
    names = [(item.device, item.ether) for item in interfaces(machine)]
    if has_bridge(machine):
        names.append((BRIDGE, mac_address(machine.name, BRIDGE)))
    rows = [
        f"{device:<11}{1500:<6}{f'<Link#{number}>':<12}{ether:>19} {0:>8} {0:>5} {0:>10} {0:>8} {0:>5} {0:>10} {0:>5}\n"
        for number, (device, ether) in enumerate(sorted(names), 1)
    ]
    return head + "".join(rows)


def routes(machine: MachineLayout) -> list[tuple[Address, str]]:
    """Networks that this Mac reaches directly, and by which interface."""
    found = [(item.address, item.device) for item in interfaces(machine) if item.address and item.active]
    own = bridge_address(machine)
    return found + ([(own, BRIDGE)] if own else [])


def default_route(machine: MachineLayout) -> str | None:
    """The interface of the default route: that of the LAN, while it has an address."""
    return next((item.device for item in interfaces(machine) if item.device == "en0" and item.active and item.address), None)
