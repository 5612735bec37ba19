"""Parses ``rdma_ctl status``, ``ibv_devices`` and ``ibv_devinfo -v``: the switch, the devices, their states and GIDs."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from thunderfleet_crds.vocabulary import RDMADeviceState

from thunderfleet_lib.host.hostcmd import quote
from thunderfleet_lib.host.parsing import ParseError, clean, require_whole

STATUS_COMMAND = ("rdma_ctl", "status")
DEVICES_COMMAND = ("ibv_devices",)
DEVINFO_COMMAND = ("ibv_devinfo", "-v")

NO_DEVICES_TEXT = "No IB devices found"
"""What the commands print, some of them with an error code, when there is no device."""

_STATES = {
    "PORT_ACTIVE": RDMADeviceState.ACTIVE,
    "PORT_ACTIVE_DEFER": RDMADeviceState.ACTIVE_DEFER,
    "PORT_ARMED": RDMADeviceState.ARMED,
    "PORT_INIT": RDMADeviceState.INIT,
    "PORT_DOWN": RDMADeviceState.DOWN,
}

_HCA = re.compile(r"hca_id:\s*(\S{1,64})")
_STATE = re.compile(r"\bstate:\s*(PORT_\w{1,32})")
_INTERFACE = re.compile(r"^(\S{1,64}?): flags=")
_MEMBER = re.compile(r"^\s+member:\s*(\S{1,64})")
_GID = re.compile(r"GID\[\s*\d+\]:\s*(\S{1,64})")
_DEVICE = re.compile(r"^\s*(\S{1,64})\s+((?:0x)?[0-9a-fA-F]{16}|[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3})\s*$")
_RULE = re.compile(r"^\s*-{6,}\s+-{16,}\s*$")
# The last lines of a device's description, without and with -v.
_WHOLE = re.compile(r"\blink_layer:\s*\S|\bGID\[|\bactive_speed:")
_VERBOSE = re.compile(r"\bmax_(mr_size|qp|mr):")
_VERBOSE_WHOLE = re.compile(r"\bGID\[|\bactive_speed:")


@dataclass(frozen=True)
class DeviceInfo:
    """One device of ``ibv_devinfo``: its port's state as printed (``PORT_ACTIVE``) and its first IPv4-mapped GID."""

    name: str
    state: str | None = None
    gid: str | None = None


def port_state(printed: str | None) -> RDMADeviceState:
    """The state of a port as the API names it."""
    return _STATES.get(printed or "", RDMADeviceState.UNKNOWN)


def parse_status(text: str) -> bool:
    """Whether RDMA is switched on. Raises ParseError for anything but ``enabled`` and ``disabled``."""
    words = set(re.findall(r"[a-z]+", text.lower()))
    on, off = "enabled" in words, "disabled" in words
    if on == off or not words.isdisjoint(("not", "no", "false")):
        raise ParseError(" ".join(STATUS_COMMAND), f"printed neither enabled nor disabled: {quote(text) or 'nothing'}")
    return on


def parse_devices(text: str) -> tuple[str, ...]:
    """The names of the listed devices. Raises ParseError when the text is not that table, or truncated."""
    names: dict[str, None] = {}
    table, broken, command = False, "", " ".join(DEVICES_COMMAND)
    for line in text.splitlines():
        if _RULE.match(line) or NO_DEVICES_TEXT in line:
            table, broken = True, ""
        elif match := _DEVICE.match(line):
            name = clean(match.group(1), 64)
            if name:
                table, broken = True, ""
                names.setdefault(name)
        elif line.strip():
            broken = line
    if not table:
        raise ParseError(command, f"printed no table of devices: {quote(text) or 'nothing'}")
    require_whole(command, text)
    if broken:
        raise ParseError(command, f"ends with a line that is not a device: {quote(broken)}")
    return tuple(names)


def parse_devinfo(text: str) -> tuple[DeviceInfo, ...]:
    """The devices, by name without duplicates; line breaks may be missing.

    Raises ParseError when the text neither describes a device nor reports that there is none, or when it is truncated. A list
    of GIDs has no end mark (``gid_tbl_len`` is its capacity), so a GID that is cut off at the end goes unnoticed here.
    """
    if NO_DEVICES_TEXT in text:
        return ()
    command = " ".join(DEVINFO_COMMAND)
    heads = list(_HCA.finditer(text))
    if not heads:
        raise ParseError(command, f"describes no device: {quote(text) or 'nothing'}")
    require_whole(command, text)
    last = text[heads[-1].end() :]
    if not (_VERBOSE_WHOLE if _VERBOSE.search(last) else _WHOLE).search(last):
        raise ParseError(command, f"is truncated in the description of {clean(heads[-1].group(1), 64)}")
    found: dict[str, DeviceInfo] = {}
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        part = text[head.end() : following.start() if following else len(text)]
        name = clean(head.group(1), 64)
        if not name:
            continue
        state = _STATE.search(part)
        gids = (_ipv4_mapped(match.group(1)) for match in _GID.finditer(part))
        found.setdefault(name, DeviceInfo(name, state.group(1) if state else None, next((gid for gid in gids if gid), None)))
    return tuple(found.values())


def _ipv4_mapped(text: str) -> str | None:
    """``::ffff:169.254.1.2`` when the GID is an IPv4-mapped address, in any notation."""
    try:
        address = ipaddress.IPv6Address(text.rstrip(","))
    except ValueError:
        return None
    mapped = address.ipv4_mapped
    return f"::ffff:{mapped}" if mapped and not mapped.is_unspecified else None


def parse_bridges(text: str) -> dict[str, str]:
    """Interface to bridge, for the members of all bridges in the output of ``ifconfig``."""
    found: dict[str, str] = {}
    bridge = ""
    for line in text.splitlines():
        if head := _INTERFACE.match(line):
            bridge = head.group(1) if head.group(1).startswith("bridge") else ""
        elif bridge and (member := _MEMBER.match(line)):
            found[member.group(1)] = bridge
    return found
