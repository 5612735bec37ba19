"""Who is dialled, and what the answers come to: pure functions of profiles, outcomes and a time that is given.

A Mac dials every address of the Macs at the other ends of its cables, and one address of some others, so that a fleet of a
thousand stays quiet: whoever belongs to its window of buckets. What it finds are facts of one direction, this Mac's.
"""

from __future__ import annotations

import hashlib
import ipaddress
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from thunderfleet_crds.names import GROUP
from thunderfleet_crds.nodeprofile import MAX_REACHABILITY, GroupUse, NodeProfile, NodeProfileStatus, Reachability
from thunderfleet_crds.thunderboltlink import ThunderboltLinkSpec
from thunderfleet_crds.vocabulary import AddressClass, InterfaceKind, ReachabilityState

# Every profile carries the bucket of its node's name, so that some Macs are found with one list, whatever the fleet's size.
LABEL_BUCKET = f"{GROUP}/bucket"
BUCKETS = 256
MAX_OTHERS = 32
# Of the Macs that it shares groups with, a Mac dials so many.
MAX_MEMBERS = 32
STRIKES = 3
# The round trip is the median of so many rounds, and written anew when it has moved by half, but not more often than this.
ROUNDS = 5
RTT_SECONDS = 600.0

_NOBODY: Mapping[str, NodeProfile] = MappingProxyType({})
_NO_PORTS: Mapping[int, str | None] = MappingProxyType({})
_DIALLED = (AddressClass.PRIVATE, AddressClass.LINK_LOCAL, AddressClass.SHARED)


@dataclass(frozen=True)
class Target:
    """One address of one node. ``interface`` is this Mac's interface that the connection must leave by (a cable), None when
    any will do; ``sha256`` the certificate that proves who answers.
    """

    node: str
    address: str
    port: int
    sha256: str
    interface: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.node, self.address


@dataclass(frozen=True)
class Outcome:
    """What became of one dial: the round trip in microseconds and the interface that it left by, or why there is none."""

    target: Target
    rtt_microseconds: int | None = None
    interface: str | None = None
    problem: str | None = None


def bucket(node: str) -> int:
    """Where a node's name falls, 0 to BUCKETS - 1."""
    return hashlib.sha256(node.encode()).digest()[0] % BUCKETS


def bucket_label(number: int) -> str:
    return f"b{number % BUCKETS:02x}"


def window(node: str, profiles: int) -> tuple[str, ...]:
    """The buckets that hold about MAX_OTHERS of so many profiles: the node's own and those that follow."""
    width = min(BUCKETS, max(1, round(MAX_OTHERS * BUCKETS / max(profiles, 1))))
    return tuple(bucket_label(bucket(node) + step) for step in range(width))


def listen_addresses(status: NodeProfileStatus) -> frozenset[str]:
    """This Mac's addresses that other agents may dial: none that the world can, no IPv6 link-local one (it needs a zone)."""
    return frozenset(
        a.address
        for interface in (status.network.interfaces if status.network else ())
        if interface.up
        for a in interface.addresses
        if _dialled(a.address, a.class_)
    )


def _dialled(address: str, class_: AddressClass) -> bool:
    return class_ in _DIALLED and not (":" in address and class_ is AddressClass.LINK_LOCAL)


def targets(
    node: str,
    own: NodeProfileStatus,
    links: Iterable[ThunderboltLinkSpec],
    neighbours: Mapping[str, NodeProfile],
    others: Iterable[NodeProfile],
    members: Mapping[str, NodeProfile] = _NOBODY,
) -> tuple[Target, ...]:
    """Whom ``node`` dials. ``links`` are its cables, ``neighbours`` the profiles at their other ends by name, ``members`` those
    of the Macs that it shares groups with.
    """
    interfaces = {port.receptacle: port.interface for port in (own.thunderbolt.ports if own.thunderbolt else ())}
    found: dict[tuple[str, str], Target] = {}
    cabled: dict[str, dict[int, str | None]] = {}
    for link in links:
        for here, there in ((link.a, link.b), (link.b, link.a)):
            if here.node == node and there.node in neighbours:
                cabled.setdefault(there.node, {})[there.port] = interfaces.get(here.port)
    for name in sorted(cabled):
        for target in _every_address(neighbours[name], cabled[name]):
            found.setdefault(target.key, target)
    for name in sorted(set(members) - set(cabled) - {node}):
        for target in _every_address(members[name], _NO_PORTS):
            found.setdefault(target.key, target)
    far = 0
    for profile in sorted(others, key=lambda profile: profile.metadata.name):
        agent, name = profile.status.agent, profile.metadata.name
        if agent is None or name == node or name in cabled or name in members or far >= MAX_OTHERS:
            continue
        far += 1
        target = Target(name, agent.address, agent.port, agent.certificate_sha256)
        found.setdefault(target.key, target)
    return tuple(found.values())[:MAX_REACHABILITY]


def members(node: str, own: Iterable[GroupUse]) -> tuple[str, ...]:
    """The Macs that ``node`` shares groups with, as many as it dials: by name, so that they are the same ones every time."""
    return tuple(sorted({name for group in own for name in group.nodes} - {node})[:MAX_MEMBERS])


def _every_address(profile: NodeProfile, ports: Mapping[int, str | None]) -> Iterable[Target]:
    """All addresses of a Mac; those of its Thunderbolt ports only where a cable of ours (``ports``) ends: elsewhere they are
    beyond a wire that this Mac has no part in.
    """
    status, name = profile.status, profile.metadata.name
    if status.agent is None:
        return
    theirs = {port.interface: port.receptacle for port in (status.thunderbolt.ports if status.thunderbolt else ())}
    agent = status.agent
    yield Target(name, agent.address, agent.port, agent.certificate_sha256)
    for interface in status.network.interfaces if status.network else ():
        by: str | None = None
        if interface.kind is InterfaceKind.THUNDERBOLT:
            by = ports.get(theirs.get(interface.name, -1))
            if by is None:
                continue
        for a in interface.addresses:
            usable = _dialled(a.address, a.class_) and (by is not None or a.class_ is not AddressClass.LINK_LOCAL)
            if interface.up and usable:
                yield Target(name, a.address, agent.port, agent.certificate_sha256, by)


def interface_of(own: NodeProfileStatus, address: str) -> str | None:
    """This Mac's interface that has the address."""
    for interface in own.network.interfaces if own.network else ():
        if any(a.address == address for a in interface.addresses):
            return interface.name
    return None


def source(own: NodeProfileStatus, target: Target, host_ip: str) -> str | None:
    """The address to dial from, None to leave it to the routes, which are part of what is found out. Loopback addresses have
    no routes that could tell anything (recorded Macs without namespaces), so there the address says who dials.
    """
    if not ipaddress.ip_address(target.address).is_loopback:
        return None
    if target.interface is None:
        return host_ip
    for interface in own.network.interfaces if own.network else ():
        if interface.name == target.interface and interface.addresses:
            return next((a.address for a in interface.addresses if ":" not in a.address), None)
    return None


@dataclass
class Entry:
    """One published fact, and what led to it."""

    fact: Reachability
    misses: int = 0
    rounds: deque[int] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    written: datetime | None = None


class Ledger:
    """The facts, changed by outcomes: one failed round marks suspect, three remove."""

    def __init__(self, facts: Iterable[Reachability] = ()) -> None:
        self._entries = {(fact.node, fact.address): Entry(fact) for fact in facts}

    @property
    def facts(self) -> tuple[Reachability, ...]:
        return tuple(self._entries[key].fact for key in sorted(self._entries))[:MAX_REACHABILITY]

    def keep(self, wanted: Sequence[Target]) -> None:
        """Forgets what is no longer dialled."""
        keys = {target.key for target in wanted}
        self._entries = {key: entry for key, entry in self._entries.items() if key in keys}

    def record(self, outcome: Outcome, now: datetime) -> None:
        """One dial's outcome."""
        key = outcome.target.key
        entry = self._entries.get(key)
        if outcome.rtt_microseconds is None:
            if entry is None:
                return
            entry.misses += 1
            if entry.misses >= STRIKES:
                del self._entries[key]
            elif entry.fact.state is not ReachabilityState.SUSPECT:
                entry.fact = entry.fact.model_copy(update={"state": ReachabilityState.SUSPECT, "since": now})
            return
        if entry is None or entry.fact.state is not ReachabilityState.REACHABLE or entry.fact.interface != outcome.interface:
            fact = Reachability(
                node=outcome.target.node,
                address=outcome.target.address,
                interface=outcome.interface,
                state=ReachabilityState.REACHABLE,
                since=now,
                rtt_microseconds=outcome.rtt_microseconds,
            )
            self._entries[key] = Entry(fact, rounds=deque((outcome.rtt_microseconds,), ROUNDS), written=now)
            return
        entry.misses = 0
        entry.rounds.append(outcome.rtt_microseconds)
        if len(entry.rounds) < ROUNDS or (entry.written and (now - entry.written).total_seconds() < RTT_SECONDS):
            return
        old, median = entry.fact.rtt_microseconds, round(statistics.median(entry.rounds))
        if old is None or abs(median - old) * 2 > old:
            entry.fact, entry.written = entry.fact.model_copy(update={"rtt_microseconds": median}), now
