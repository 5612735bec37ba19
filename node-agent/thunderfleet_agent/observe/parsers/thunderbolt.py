"""Thunderbolt ports and the computers behind them, from ``system_profiler SPThunderboltDataType -json``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from thunderfleet_lib.host.hostcmd import quote
from thunderfleet_lib.host.parsing import ParseError, clean

from thunderfleet_agent.observe.parsers.profiler import report

COMMAND = ("system_profiler", "SPThunderboltDataType", "-json")
NAME = " ".join(COMMAND)

MAX_DEPTH = 32
MAX_HUBS = 8
MAX_PEERS = 8
MAX_RECEPTACLE = 16
# Systems that print "x1" or "x2" after the speed of one lane are older than Thunderbolt 5.
OLD_SHAPE_LIMIT_MBPS = 40_000

_FIGURE = r"(\d{1,4}(?:[.,]\d{1,3})?)"
_UNIT = r"([GM])b(?:its?)?(?:/s|ps)"
_SPEED = re.compile(rf"^\s*{_FIGURE}(?:\s*{_UNIT})?(?:\s*/\s*{_FIGURE})?\s*{_UNIT}(?:\s*x\s*(\d))?\s*$", re.IGNORECASE)
_RECEPTACLE = re.compile(r"^receptacle_(\w+)_tag$")
_UUID = re.compile(r"^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$")


@dataclass(frozen=True)
class Peer:
    """Another computer: the domain UUID of its port, its name, and the hubs in between, nearest first.

    ``speed_mbps`` is the negotiated speed of the slowest hop that this Mac reports, in Mb/s.
    """

    domain_uuid: str
    name: str | None = None
    through: tuple[str, ...] = ()
    speed_mbps: int | None = None


@dataclass(frozen=True)
class Port:
    """One receptacle. ``speed_mbps`` is the negotiated speed, None if nothing is connected."""

    receptacle: int
    switch_uid: str | None = None
    domain_uuid: str | None = None
    connected: bool = False
    speed_mbps: int | None = None
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True)
class Thunderbolt:
    """The ports by receptacle, and the parts of the report that could not be used."""

    ports: tuple[Port, ...] = ()
    problems: tuple[str, ...] = ()


def parse(text: str) -> Thunderbolt:
    """Reads the report. A machine without Thunderbolt has no ports. Raises ParseError without a report."""
    ports: dict[int, Port] = {}
    problems: list[str] = []
    for section in _buses(report(NAME, text, "SPThunderboltDataType")):
        if not section.get("_name") and not _receptacles(section):
            # A virtual machine's `{"Thunderbolt": "no_hardware"}`.
            continue
        name = clean(section.get("_name"), 64) or "an unnamed bus"
        try:
            found = list(_ports(section, problems))
        except RecursionError:
            raise ParseError(NAME, f"nests devices deeper than {MAX_DEPTH} levels under {name}") from None
        if not found:
            problems.append(f"{name} has no receptacle number")
        for port in found:
            if port.receptacle in ports:
                problems.append(f"receptacle {port.receptacle} is listed twice")
            else:
                ports[port.receptacle] = port
    return Thunderbolt(tuple(ports[number] for number in sorted(ports)), tuple(problems))


def _buses(sections: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The buses; a section without receptacles may list them as its items."""
    for section in sections:
        inner = [item for item in _children(section) if isinstance(item, dict) and _is_bus(item)]
        yield from inner if inner and not _receptacles(section) else (section,)


def _is_bus(item: dict[str, Any]) -> bool:
    """Whether its receptacles are numbered: only those of a Mac are, those of docks are not."""
    return any(_number(tag.get("receptacle_id_key")) is not None for tag in _receptacles(item).values())


def speed_mbps(value: object) -> int | None:
    """A negotiated speed in Mb/s.

    "80 Gb/s" is 80000, "120/40 Gb/s" 120000 (the faster direction shows the Thunderbolt version), "20 Gb/s x2" (lanes) 40000.
    None for "Up to …", the capability of an idle port, and for anything else.
    """
    if not isinstance(value, str) or value.strip().lower().startswith("up to"):
        return None
    match = _SPEED.match(value)
    if not match:
        return None
    one, unit, other, last, lanes = match.groups()
    ways = [(one, unit or last), *([(other, last)] if other else [])]
    speed = max(round(float(figure.replace(",", ".")) * (1000 if of.upper() == "G" else 1)) for figure, of in ways)
    if lanes and speed <= OLD_SHAPE_LIMIT_MBPS:
        speed = min(speed * int(lanes), OLD_SHAPE_LIMIT_MBPS)
    return speed or None


def _receptacles(item: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The receptacle tags of a bus or a device, by the part of their key between `receptacle_` and `_tag`."""
    found = {}
    for key, value in item.items():
        match = _RECEPTACLE.match(key)
        if match and isinstance(value, dict):
            found[match.group(1)] = value
    return found


def _connected(tag: dict[str, Any]) -> bool:
    """Whether something is connected, by the status; without a status, only a port in use has a plain speed."""
    status = tag.get("receptacle_status_key")
    if status in ("receptacle_connected", "receptacle_no_devices_connected"):
        return bool(status == "receptacle_connected")
    return speed_mbps(tag.get("current_speed_key")) is not None


def _odd_speed(tag: dict[str, Any]) -> str | None:
    """The speed of a port that may be in use, quoted, if its form is unknown (another language)."""
    text = tag.get("current_speed_key")
    if text is None or speed_mbps(text) or tag.get("receptacle_status_key") == "receptacle_no_devices_connected":
        return None
    if not _connected(tag) and isinstance(text, str) and text.strip().lower().startswith("up to"):
        return None
    return quote(str(text)[:64])


def _ports(bus: dict[str, Any], problems: list[str]) -> Iterator[Port]:
    uuid = _uuid(bus.get("domain_uuid_key"))
    tags = []
    for tag in _receptacles(bus).values():
        number = _number(tag.get("receptacle_id_key"))
        if number is not None:
            tags.append((number, tag))
    # Apple silicon has one receptacle per bus. Older Macs have two, and the report does not show which one leads to a peer: the
    # first with something connected gets the peers.
    tags.sort(key=lambda pair: (not _connected(pair[1]), pair[0]))
    for index, (number, tag) in enumerate(tags):
        connected = _connected(tag)
        if (odd := _odd_speed(tag)) is not None:
            problems.append(f"receptacle {number} has a speed in an unknown format: {odd!r}")
        speed = speed_mbps(tag.get("current_speed_key")) if connected else None
        peers: dict[str, Peer] = {}
        if index == 0:
            # A port with devices behind it is connected, regardless of its reported status.
            connected = connected or any(isinstance(item, dict) and item for item in _children(bus))
            for peer in _peers(bus, speed, (), 0, problems):
                if peer.domain_uuid.lower() != (uuid or "").lower():
                    peers.setdefault(peer.domain_uuid.lower(), peer)
        yield Port(
            receptacle=number,
            switch_uid=clean(bus.get("switch_uid_key"), 64),
            domain_uuid=uuid,
            connected=connected,
            speed_mbps=speed,
            peers=tuple(peers.values())[:MAX_PEERS],
        )


def _peers(
    item: dict[str, Any], speed: int | None, through: tuple[str, ...], depth: int, problems: list[str]
) -> Iterator[Peer]:
    """Depth first. An item with a domain UUID is a computer; others are hubs, displays or drives."""
    if depth > MAX_DEPTH:
        raise RecursionError
    for child in _children(item):
        if not isinstance(child, dict):
            continue
        name = clean(child.get("_name"), 128) or clean(child.get("device_name_key"), 128)
        uuid = _uuid(child.get("domain_uuid_key"))
        if uuid:
            yield Peer(uuid, name, through[:MAX_HUBS], speed)
        elif child.get("domain_uuid_key") is not None or child.get("services_title") is not None:
            # Only computers offer services; without the UUID it is unknown which port of which computer this is.
            problems.append(f"{name or 'a computer'} has no valid domain UUID")
        slower = speed if uuid else _slower(speed, _hub_speed(child))
        yield from _peers(child, slower, (*through, name or "unnamed hub"), depth + 1, problems)


def _children(item: dict[str, Any]) -> list[Any]:
    children = item.get("_items")
    return children if isinstance(children, list) else [children] if children else []


def _hub_speed(hub: dict[str, Any]) -> int | None:
    """The slower of a hub's uplink and its fastest downlink in use.

    The report does not show which downlink leads to the peer, so downlinks count only if the speed of each is known. The last
    hop is a port of the other Mac and is in that Mac's profile.
    """
    tags = _receptacles(hub)
    up = [speed_mbps(tag.get("current_speed_key")) for key, tag in tags.items() if key.startswith("upstream")]
    down = [
        speed_mbps(tag.get("current_speed_key"))
        for key, tag in tags.items()
        if not key.startswith("upstream") and _connected(tag)
    ]
    known = [speed for speed in down if speed]
    complete = len(known) == len(down) >= len(_children(hub))
    return _slower(next(iter(up), None), max(known) if known and complete else None)


def _slower(one: int | None, other: int | None) -> int | None:
    return min(one, other) if one and other else one or other


def _uuid(value: object) -> str | None:
    text = clean(value, 64)
    return text if text and _UUID.match(text) else None


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value.strip()) < 4:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_RECEPTACLE:
        return value
    return None
