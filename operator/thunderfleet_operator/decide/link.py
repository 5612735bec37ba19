"""One round for a cable: removes the entry of a deleted Node, deletes a link whose cable is gone, or updates its status."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_operator.decide.link_status import current, link_ends, summary
from thunderfleet_operator.decide.status.events import Occurrence
from thunderfleet_operator.observe.observed import ObservedLink

Json = dict[str, Any]

LINGER_SECONDS = 60.0
"""How long a link without any end stays, so that users see that the cable was pulled, and a cable that is put back keeps its
object."""


def _alive(observed: ObservedLink) -> frozenset[str]:
    """The ends whose Node is Ready."""
    return frozenset(end for end in link_ends(observed.link) if (node := observed.nodes.get(end)) is not None and node.ready)


def lingers(link: ThunderboltLink, now: datetime) -> float | None:
    """Seconds until a link without any end is removed, 0 when it is time; None for a link that has an end."""
    if link.status.endpoints:
        return None
    found = find_condition(link.status.conditions, ConditionType.CONNECTED)
    if found is None or found.status is ConditionStatus.TRUE or found.last_transition_time is None:
        return LINGER_SECONDS
    # A flapping cable is reported as not Connected long before its ends are gone.
    both = find_condition(link.status.conditions, ConditionType.SYMMETRIC)
    if both is not None and both.status is ConditionStatus.TRUE:
        return LINGER_SECONDS
    since = max(one.last_transition_time for one in (found, both) if one is not None and one.last_transition_time is not None)
    return max(0.0, LINGER_SECONDS - age_seconds(since, now))


def change(link: ThunderboltLink, made: Json, first_led: datetime | None = None) -> Occurrence | None:
    """The Event for a cable that was plugged in or pulled, flaps, or became slow; None if ``made`` has nothing new.

    That a cable is connected is no news if its link is older than the first operator of the cluster (``first_led``). One that
    was plugged in while no operator ran is news for the next one.
    """
    before = find_condition(link.status.conditions, ConditionType.CONNECTED)
    after = next((c for c in made["conditions"] if c["type"] == ConditionType.CONNECTED), None)
    if after is None or (before is None and after["status"] != "True"):
        return None
    if before is not None and (before.status.value, before.reason) == (after["status"], after["reason"]):
        return None
    if before is not None and (before.reason, after["reason"]) == (Reason.UNPLUGGED, Reason.NOTHING_PLUGGED_IN):
        # A cable is being plugged in: one of its ends is a moment ahead of the other.
        return None
    fine, created = after["reason"] == Reason.CONNECTED, link.metadata.creation_timestamp
    if fine and before is None and first_led is not None and created is not None and created < first_led:
        return None
    return Occurrence(str(after["reason"]), str(after["message"]), warning=not fine)


def _switch_uid(profile: NodeProfile | None, port: int) -> str | None:
    """The UID of the switch behind a port, which stays with the hardware when a Mac is renamed; None if unknown or zero."""
    ports = profile.status.thunderbolt.ports if profile and profile.status.thunderbolt else ()
    uid = next((one.switch_uid for one in ports if one.receptacle == port), None)
    return uid if uid and uid.strip("0xX") else None


def _renamed_ends(observed: ObservedLink) -> Iterator[str]:
    """Ends whose Node is not Ready while a Ready Node has the same port: the Mac has been renamed since that report."""
    for end in observed.link.status.endpoints:
        node = observed.nodes.get(end.node)
        if node is None or node.ready:
            continue
        uid = _switch_uid(observed.profiles.get(end.node), end.port)
        others = (name for name, other in observed.nodes.items() if other.ready) if uid is not None else ()
        if any(_switch_uid(observed.profiles.get(name), end.port) == uid for name in others):
            yield end.node


def removal(link: ThunderboltLink, node: str) -> list[Json]:
    """A JSON patch that removes a Mac's entry. It does nothing if the entry has moved meanwhile."""
    for position, end in enumerate(link.status.endpoints):
        if end.node == node:
            path = f"/status/endpoints/{position}"
            return [{"op": "test", "path": f"{path}/node", "value": node}, {"op": "remove", "path": path}]
    return []


@dataclass(frozen=True, slots=True)
class LinkDecision:
    """What to do for one cable; at most one of ``delete``, ``patch`` and ``status``."""

    delete: bool = False
    patch: tuple[Json, ...] = ()
    """A JSON patch of the status."""
    status: Json | None = None
    """The operator's part of the status to apply."""
    event: Occurrence | None = None
    recheck_seconds: float | None = None


def decide(observed: ObservedLink) -> LinkDecision:
    """Decides about one cable: remove the entry of a deleted Node, delete a link whose cable is gone, or update its status."""
    link = observed.link
    if link.metadata.deletion_timestamp is not None:
        return LinkDecision()
    gone = tuple(node for node in link_ends(link) if node not in observed.nodes)
    if len(gone) == 2:
        return LinkDecision(delete=True)
    for node in (*gone, *_renamed_ends(observed)):
        patch = removal(link, node)
        if patch:
            return LinkDecision(patch=tuple(patch), recheck_seconds=0.0)
    left = lingers(link, observed.now)
    if left == 0:
        a, b = link_ends(link)
        text = f"neither {a} nor {b} has reported this cable for {LINGER_SECONDS:.0f} s: the link is removed"
        return LinkDecision(delete=True, event=Occurrence(Reason.REMOVED, text))
    made = summary(link, observed.profiles, observed.now, _alive(observed))
    if made == current(link):
        return LinkDecision(recheck_seconds=left)
    return LinkDecision(status=made, event=change(link, made, observed.first_led), recheck_seconds=left)
