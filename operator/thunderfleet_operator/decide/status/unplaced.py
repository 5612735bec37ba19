"""``status.unplaceable``: why groups cannot be placed, in full."""

from collections.abc import Sequence

from thunderfleet_crds.kinds.modeldeployment import Unplaceable as Entry
from thunderfleet_crds.names import MAX_RANKS

from thunderfleet_operator.decide.status.outcome import Outcome
from thunderfleet_operator.placement import Unplaceable

LISTED = 64
"""Entries of ``status.unplaceable``."""


def _entries(index: int, found: Unplaceable) -> list[Entry]:
    """The near misses of a group, then the other Macs, grouped by what each is missing."""
    entries = [
        Entry(
            group=index,
            transport=miss.transport,
            parallelism=miss.split,
            nodes=miss.nodes,
            message=miss.message,
        )
        for miss in found.near_misses
    ]
    macs: dict[str, list[str]] = {}
    for mac in found.macs:
        macs.setdefault(mac.message, []).append(mac.node)
    for message, nodes in macs.items():
        for first in range(0, len(nodes), MAX_RANKS):
            entries.append(Entry(group=index, nodes=tuple(nodes[first : first + MAX_RANKS]), message=message))
    if len(entries) > LISTED:
        left_out = sum(len(entry.nodes) for entry in entries[LISTED - 1 :])
        entries[LISTED - 1 :] = [Entry(group=index, message=f"and {left_out} more Macs")]
    return entries


def unplaceable(outcomes: Sequence[Outcome]) -> tuple[Entry, ...]:
    """The entries of all groups that the planner could not place."""
    found = [
        entry for outcome in outcomes if outcome.unplaceable for entry in _entries(outcome.view.index, outcome.unplaceable)
    ]
    return tuple(found[:LISTED])
