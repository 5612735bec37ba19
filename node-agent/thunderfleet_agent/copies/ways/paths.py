"""The ways from this Mac to another one, best first. Pure.

Copies over a cable that no group uses have no limit. The LAN is shared with other traffic, so copies over it are limited.
Cables that a group uses come last and are limited too, because messages of the group wait behind the bytes of the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from thunderfleet_crds.kinds.nodeprofile import Agent, GroupUse

from thunderfleet_agent.measure.schedule.probes import Target
from thunderfleet_agent.measure.schedule.view import View
from thunderfleet_agent.peers.dial_plan import PeerAddress

MAX_PATHS = 8
"""Maximum number of ways that one transfer uses at once."""
MAX_NETWORK_PATHS = 2


class Way(IntEnum):
    """The kind of a way; lower kinds are used first."""

    CABLE = 0
    NETWORK = 1
    USED_CABLE = 2
    """A group uses the cable."""


@dataclass(frozen=True)
class Path:
    """One way to the agent of another Mac. ``source``: the local address of the connection; None lets the routes decide."""

    to: PeerAddress
    way: Way
    source: str | None = None
    link: str = ""
    """The ThunderboltLink; empty for the network."""

    @property
    def key(self) -> str:
        return f"{self.to.node} {self.to.address}"

    def __str__(self) -> str:
        return f"{self.to.node} over {f'cable {self.link}' if self.link else 'the network'}"


def paths(nodes: Iterable[str], view: View, groups: Sequence[GroupUse] | None, agents: Mapping[str, Agent]) -> tuple[Path, ...]:
    """The ways to these nodes, at most MAX_PATHS: every cable, and one address of the network for each.

    ``agents``: of nodes that are not in the view. ``groups``: None until they have been read; all cables count as used then.
    """
    used = None if groups is None else {link for group in groups for link in group.links}
    found: list[Path] = []
    for node in nodes:
        targets = [target for target in view.targets if target.node == node]
        for target in targets:
            if target.link:
                way = Way.CABLE if used is not None and target.link not in used else Way.USED_CABLE
                found += _path(view, target, way)
        agent = view.agents.get(node) or agents.get(node)
        plain = sorted((t for t in targets if not t.link), key=lambda t: (agent is None or t.address != agent.address, t))
        if plain:
            found += _path(view, plain[0], Way.NETWORK)
        elif agent is not None and not targets:
            to = PeerAddress(node, agent.address, agent.port, agent.certificate_sha256)
            found.append(Path(to, Way.NETWORK, view.source(Target(node, agent.address), agent.address)))
    found.sort(key=lambda path: path.way)
    network = [path for path in found if path.way is Way.NETWORK][MAX_NETWORK_PATHS:]
    return tuple(path for path in found if path not in network)[:MAX_PATHS]


def _path(view: View, target: Target, way: Way) -> list[Path]:
    to = view.dial(target)
    return [] if to is None else [Path(to, way, view.source(target, to.address), target.link)]
