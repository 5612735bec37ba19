"""Whether the RDMA devices of the plan can be used now, asked before a rank is started.

JACCL would find out too, but late, on one rank while the others wait, and in words that name neither the device nor what a
person can do. ``judge`` is the decision; ``read`` asks the Mac.
"""

import ipaddress
import re
from dataclasses import dataclass, field

from thunderfleet_crds.vocabulary import FaultClass

from thunderfleet_runner.faults import Fault
from thunderfleet_runner.host import commands

PREFIX = "rdma_"
"""A device is named after its interface: rdma_en2 is en2's."""

_HCA = re.compile(r"hca_id:\s*(\S+)")
_STATE = re.compile(r"\bstate:\s*(PORT_\w+)")
_GID = re.compile(r"GID\[\s*\d+\]:\s*(\S+)")
_LISTED = re.compile(r"^\s*(\S+)\s+[0-9a-fA-F]{16}\s*$", re.MULTILINE)
_INTERFACE = re.compile(r"^(\w+): flags=")
_MEMBER = re.compile(r"^\s+member: (\w+)\b")


@dataclass(frozen=True)
class Device:
    """``state`` as printed (PORT_ACTIVE); ``mapped``: whether JACCL finds a GID that stands for an IPv4 address."""

    name: str
    state: str
    mapped: bool


@dataclass(frozen=True)
class Stack:
    """What a Mac's commands say of RDMA. ``on`` is None when the switch could not be read."""

    listed: tuple[str, ...] = ()
    devices: dict[str, Device] = field(default_factory=dict)
    bridges: dict[str, str] = field(default_factory=dict)
    """Interface -> the bridge that it is a member of."""
    on: bool | None = None


def check(node: str, wanted: tuple[str, ...]) -> Fault | None:
    """The first thing that keeps a wanted device from being used, or None."""
    try:
        return judge(node, wanted, read())
    except commands.CommandMissing as error:
        text = f"{error}: RDMA over Thunderbolt needs macOS 26.2 or newer on {node}"
        return Fault(FaultClass.CONFIGURE, "RdmaUnavailable", text)
    except commands.CommandHangs as error:
        return Fault(FaultClass.REBOOT, "RdmaHangs", f"on {node}, {error}: the RDMA stack is stuck; reboot {node}")
    except commands.CommandError as error:
        return Fault(FaultClass.RETRY, "RdmaUnknown", f"on {node}, {error}")


def read() -> Stack:
    """Asks ibv_devices, ibv_devinfo, ifconfig and, when nothing is listed, rdma_ctl. Raises CommandError."""
    listed = parse_listed(commands.run("ibv_devices"))
    if not listed:
        return Stack(on=_switch())
    return Stack(
        listed=listed,
        devices=parse_devinfo(commands.run("ibv_devinfo", "-v")),
        bridges=parse_bridges(commands.run("ifconfig")),
        on=True,
    )


def _switch() -> bool | None:
    try:
        said = commands.run("rdma_ctl", "status").split()
    except (commands.CommandMissing, commands.CommandFailed):
        return None
    return {"enabled": True, "disabled": False}.get(said[-1].lower() if said else "")


def judge(node: str, wanted: tuple[str, ...], stack: Stack) -> Fault | None:
    """As ``check``, of what was read."""
    if not stack.listed and stack.on is False:
        text = f"RDMA is switched off on {node}: start it in Recovery, open Terminal and run `rdma_ctl enable`"
        return Fault(FaultClass.CONFIGURE, "RdmaOff", text)
    for name in wanted:
        interface = name.removeprefix(PREFIX)
        if name not in stack.listed:
            found = ", ".join(stack.listed) or "none"
            text = f"RDMA device {name} of the plan is not there on {node} any more; listed: {found}"
            return Fault(FaultClass.REPLAN, "DeviceMissing", text)
        device = stack.devices.get(name)
        state = device.state if device is not None else "not described by ibv_devinfo"
        if device is None or state != "PORT_ACTIVE":
            text = f"RDMA device {name} on {node} is {state}, not PORT_ACTIVE: is its cable in, and RDMA on at the other end?"
            return Fault(FaultClass.REPLAN, "DeviceDown", text)
        if bridge := stack.bridges.get(interface):
            text = (
                f"{interface} on {node} is a member of {bridge}, where RDMA gets no address: "
                f"take it out with `sudo ifconfig {bridge} deletem {interface}`, and for good in System Settings > Network"
            )
            return Fault(FaultClass.CONFIGURE, "BridgeHoldsPort", text)
        if not device.mapped:
            text = (
                f"RDMA device {name} on {node} has no GID of an IPv4 address: give {interface} one, "
                "in System Settings > Network or with `networksetup -setmanual`"
            )
            return Fault(FaultClass.CONFIGURE, "RdmaAddress", text)
    return None


def parse_listed(text: str) -> tuple[str, ...]:
    """The names that ``ibv_devices`` lists."""
    return tuple(_LISTED.findall(text))


def parse_devinfo(text: str) -> dict[str, Device]:
    """The devices that ``ibv_devinfo -v`` describes, by name."""
    heads = list(_HCA.finditer(text))
    found: dict[str, Device] = {}
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        part = text[head.end() : following.start() if following else len(text)]
        state = _STATE.search(part)
        mapped = any(_is_mapped(match.group(1)) for match in _GID.finditer(part))
        found[head.group(1)] = Device(head.group(1), state.group(1) if state else "without a state", mapped)
    return found


def _is_mapped(gid: str) -> bool:
    try:
        mapped = ipaddress.IPv6Address(gid.rstrip(",")).ipv4_mapped
    except ValueError:
        return False
    return mapped is not None and not mapped.is_unspecified


def parse_bridges(text: str) -> dict[str, str]:
    """Members of bridges in what ``ifconfig`` prints: interface -> bridge."""
    found, current = {}, ""
    for line in text.splitlines():
        if head := _INTERFACE.match(line):
            current = head.group(1)
        elif current.startswith("bridge") and (member := _MEMBER.match(line)):
            found[member.group(1)] = current
    return found
