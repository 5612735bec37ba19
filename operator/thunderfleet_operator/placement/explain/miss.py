"""Near misses with the cost of fixing them, by which they are ranked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from thunderfleet_crds.reasons import Reason

from thunderfleet_operator.placement.rating.preferences import RANKING
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
"""Most changes listed in a condition's message."""
ALL_TEXTS = 64
"""Most changes listed in the message of a near miss, which names everything that is needed."""
NEW_MAC = "new Mac "
"""Prefix of placeholder names for Macs that must be added. No name of a Node can begin with it."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why two Macs are not connected or one Mac cannot take part, and the cost of changing it."""

    cost: int
    text: str


@dataclass(frozen=True, slots=True)
class Miss:
    """A near miss, the cost of fixing it, and the reason of the whole answer if this is the best near miss."""

    cost: int
    missing_bytes: int
    near: NearMiss
    reason: Reason
    brief: str = ""
    """The message for a condition, if it is shorter than that of the near miss."""

    @property
    def text(self) -> str:
        """The message for a condition."""
        return self.brief or self.near.message

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: the cheapest to fix comes first. Names decide last, so they do not decide about the reason."""
        near = self.near
        return (self.cost, self.missing_bytes, len(near.nodes), RANKING.index(near.transport), self.reason, near.nodes)


def named(members: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(members)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more


def listed(texts: Sequence[str], most: int = TEXTS) -> str:
    """The first few texts, and how many more there are."""
    return "; ".join(texts[:most]) + (f"; and {len(texts) - most} more" if len(texts) > most else "")


def by_message(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """One sentence per message from pairs of Mac and message, naming all Macs that it applies to."""
    who: dict[str, list[str]] = {}
    for node, message in reasons:
        who.setdefault(message, []).append(node)
    return [f"{'each of ' if len(nodes) > 1 else ''}{named(nodes)} {message}" for message, nodes in who.items()]
