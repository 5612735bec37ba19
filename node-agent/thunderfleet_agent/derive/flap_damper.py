"""Holds the last connected state of a port whose cable flaps, so that it does not change what is published.

Otherwise a loose plug would cause writes of two profiles and a link every few seconds, and affect every placement that uses
them. Pure; the time is an argument.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from thunderfleet_lib.macnet.parse import Interface
from thunderfleet_lib.rdma.parse import DeviceInfo

from thunderfleet_agent.derive.network import port_interfaces
from thunderfleet_agent.observe.facts import Facts
from thunderfleet_agent.observe.parsers.thunderbolt import Port

# A port flaps after this many changes within the window, until it has had no change for CALM_SECONDS.
CHANGES = 5
WINDOW_SECONDS = 180.0
CALM_SECONDS = 60.0


@dataclass(frozen=True)
class ConnectedState:
    """One receptacle when a computer was last seen through it."""

    port: Port
    interface: Interface | None
    device: DeviceInfo | None


@dataclass
class _Port:
    alive: bool
    changes: deque[float] = field(default_factory=lambda: deque(maxlen=CHANGES))
    seen: ConnectedState | None = None
    flapping: bool = False


class FlapDamper:
    """Receives every observation, and gives the facts to publish. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._ports: dict[int, _Port] = {}

    @property
    def flapping(self) -> frozenset[int]:
        """The receptacles whose cable flaps."""
        return frozenset(number for number, port in self._ports.items() if port.flapping)

    def calm_at(self) -> float:
        """When the next flapping port will count as stable if nothing changes; infinite if none flaps."""
        return min(
            (port.changes[-1] + CALM_SECONDS for port in self._ports.values() if port.flapping and port.changes),
            default=float("inf"),
        )

    def see(self, facts: Facts, now: float) -> None:
        """Receives one observation."""
        if facts.thunderbolt is None:
            return
        interfaces = {interface.name: interface for interface in facts.interfaces or ()}
        names = port_interfaces(facts)
        devices = {device.name: device for device in facts.rdma_info or ()}
        for port in facts.thunderbolt.ports:
            name = names.get(port.receptacle)
            interface = interfaces.get(name) if name else None
            alive = bool(port.peers) and (interface is None or interface.up)
            known = self._ports.setdefault(port.receptacle, _Port(alive))
            if alive != known.alive:
                known.alive = alive
                known.changes.append(now)
            if alive and not known.flapping:
                known.seen = ConnectedState(port, interface, devices.get(f"rdma_{name}"))
            recent = [at for at in known.changes if now - at <= WINDOW_SECONDS]
            if known.flapping:
                known.flapping = bool(known.changes) and now - known.changes[-1] < CALM_SECONDS
                if not known.flapping:
                    known.changes.clear()
            else:
                known.flapping = len(recent) >= CHANGES and known.seen is not None

    def held(self, facts: Facts) -> Facts:
        """The facts, with flapping ports in their last connected state."""
        held = {number: self._ports[number].seen for number in self.flapping}
        if not held or facts.thunderbolt is None:
            return facts
        ports = tuple((held.get(port.receptacle) or ConnectedState(port, None, None)).port for port in facts.thunderbolt.ports)
        still = {seen.interface.name: seen.interface for seen in held.values() if seen and seen.interface}
        devices = {seen.device.name: seen.device for seen in held.values() if seen and seen.device}
        return replace(
            facts,
            thunderbolt=replace(facts.thunderbolt, ports=ports),
            interfaces=facts.interfaces and tuple(still.get(one.name, one) for one in facts.interfaces),
            rdma_info=facts.rdma_info and tuple(devices.get(one.name, one) for one in facts.rdma_info),
        )
