"""Near misses with the cost of mending them, by which they are ranked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from thunderfleet_crds.reasons import Reason

from thunderfleet_operator.placement.result import NearMiss

COST_SETTING = 1
"""Costs of a change, by effort: a setting on a Mac,"""
COST_CHECK = 2
"""something to look into, such as an agent that does not run,"""
COST_CABLE = 3
"""a cable, files or an update,"""
COST_MEMORY = 50
"""memory or another Mac."""
NAMED = 6
"""Most Macs named in a message."""
TEXTS = 4
"""Most changes listed in a message."""
NEAR_MISS_NODES = 16
"""Most Macs listed in a near miss that is not a concrete set."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why two Macs are not connected or one Mac cannot take part, and the cost of changing it."""

    cost: int
    text: str


@dataclass(frozen=True, slots=True)
class Miss:
    """A near miss, the cost of mending it, and the reason that it gives the whole answer if it is the best."""

    cost: int
    missing_bytes: int
    near: NearMiss
    reason: Reason

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: the cheapest to mend comes first."""
        near = self.near
        return (self.cost, self.missing_bytes, len(near.nodes), near.nodes, near.split)


def named(members: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(members)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more


def listed(texts: Sequence[str]) -> str:
    """The first few texts, and how many more there are."""
    return "; ".join(texts[:TEXTS]) + (f"; and {len(texts) - TEXTS} more" if len(texts) > TEXTS else "")


def by_message(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """One sentence per message from pairs of Mac and message, naming all Macs that it applies to."""
    who: dict[str, list[str]] = {}
    for node, message in reasons:
        who.setdefault(message, []).append(node)
    return [f"{'each of ' if len(nodes) > 1 else ''}{named(nodes)} {message}" for message, nodes in who.items()]
