"""The operator's part of a NodeProfile's status: the groups that have the Mac, and whether placements avoid it.

Agents read the groups: they measure no cable that a running group uses, and connect to the Macs that are in the same group. The
groups are derived from plans and pods in each round. Only a quarantine is stored in the status, until the Mac reboots.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import Failure
from thunderfleet_crds.kinds.nodeprofile import GroupUse, NodeProfile, Quarantine
from thunderfleet_crds.kinds.thunderboltlink import Endpoint, ThunderboltLink
from thunderfleet_crds.meta.conditions import Condition, find_condition, set_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import Backend, ConditionStatus, ConditionType, FaultClass, GroupPhase

from thunderfleet_operator.decide.status.events import Occurrence
from thunderfleet_operator.observe.fleet.builder import endpoint_of
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.observed import MacPlacement, ObservedMac

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MacDecision:
    """What to write for one Mac."""

    status: Status
    """The operator's whole part of the status: whatever it leaves out is removed."""
    event: Occurrence | None


# --- which groups have a Mac -----------------------------------------------------------------------------------------


def _carries(plan: Plan, rank: int, other: int, near: Endpoint | None, far: Endpoint | None) -> bool:
    """Whether a group uses the cable between the Macs of two of its ranks. ``near`` and ``far`` are the cable's ends."""
    mine, theirs = plan.ranks[rank], plan.ranks[other]
    if plan.backend is Backend.JACCL:
        return near is not None and near.rdma_device is not None and mine.devices[other] == near.rdma_device
    # In a ring each rank dials the next at that rank's ring address, which is the cable's.
    size = plan.world_size
    listens = other == (rank - 1) % size and near is not None and near.address == mine.ring_address
    dials = other == (rank + 1) % size and far is not None and far.address == theirs.ring_address
    return listens or dials


def cables(
    plan: Plan, links: Iterable[ThunderboltLink], profiles: Mapping[str, NodeProfile | None]
) -> dict[str, tuple[str, ...]]:
    """By Mac of the group, the names of the cables that the group uses there; none for hops over a LAN."""
    ranks = {entry.node: entry.rank for entry in plan.ranks}
    found: dict[str, set[str]] = {node: set() for node in ranks}
    for link in links:
        ends = (link.spec.a, link.spec.b)
        if any(end.node not in ranks for end in ends):
            continue
        endpoints = [endpoint_of(link, end, profiles.get(end.node)) for end in ends]
        for here, there in ((0, 1), (1, 0)):
            if _carries(plan, ranks[ends[here].node], ranks[ends[there].node], endpoints[here], endpoints[there]):
                found[ends[here].node].add(link.metadata.name)
                found[ends[there].node].add(link.metadata.name)
    return {node: tuple(sorted(names)) for node, names in found.items()}


def _active(placement: MacPlacement) -> bool:
    """Whether a plan's pods exist or are about to be created."""
    deployment, plan = placement.deployment, placement.plan
    if deployment is None or plan is None or placement.epoch != placement.newest_epoch:
        return False
    meta = deployment.metadata
    if meta.uid != plan.uid or meta.deletion_timestamp is not None or plan.index >= deployment.wanted_groups:
        return False
    status = next((group for group in deployment.status.groups if group.index == plan.index), None)
    return status is None or status.epoch != plan.epoch or status.state not in (GroupPhase.BACKING_OFF, GroupPhase.GAVE_UP)


def _use(mac: ObservedMac, placement: MacPlacement) -> GroupUse:
    plan = placement.plan
    if plan is None:
        # The plan was deleted before its pods: the entry of that placement stays as it is.
        known = (use for use in mac.profile.status.groups if (use.name, use.epoch) == (placement.group, placement.epoch))
        return next(known, GroupUse(name=placement.group, epoch=placement.epoch, nodes=(mac.name,)))
    used = cables(plan, mac.links, mac.profiles).get(mac.name, ())
    nodes = tuple(rank.node for rank in plan.ranks)
    return GroupUse(name=plan.group, epoch=plan.epoch, model_path=plan.model_path, nodes=nodes, links=used)


def uses(mac: ObservedMac) -> tuple[GroupUse, ...]:
    """Every group that has a pod on this Mac, or whose newest plan is about to create one."""
    found: dict[str, GroupUse] = {}
    # A later placement replaces an earlier one, so that each group is listed once.
    for placement in sorted(mac.placements, key=lambda placement: placement.epoch):
        if placement.running or _active(placement):
            use = _use(mac, placement)
            found[use.name] = use
    return tuple(found[name] for name in sorted(found))


# --- quarantine ------------------------------------------------------------------------------------------------------


def _wants_quarantine(profile: NodeProfile, failure: Failure, boot_id: str) -> bool:
    """Whether a failure is of class Reboot, and of a Mac that has neither rebooted since nor is in quarantine."""
    if failure.class_ is not FaultClass.REBOOT or failure.node != profile.metadata.name:
        return False
    known = profile.status.quarantine
    if known is not None and known.boot_id == boot_id:
        return False
    past = find_condition(profile.status.conditions, ConditionType.QUARANTINED)
    cleared = past.last_transition_time if past is not None and past.status is ConditionStatus.FALSE else None
    return cleared is None or failure.time is None or failure.time > cleared


def quarantine_for(
    profiles: Mapping[str, NodeProfile | None],
    nodes: Mapping[str, Node],
    failure: Failure | None,
    group: str,
    now: datetime,
) -> Quarantine | None:
    """The quarantine that a failure of ``group`` starts; None if it starts none."""
    if failure is None or failure.node is None:
        return None
    profile, node = profiles.get(failure.node), nodes.get(failure.node)
    if profile is None or node is None or node.boot_id is None or not _wants_quarantine(profile, failure, node.boot_id):
        return None
    evidence = f"group {group}: {failure.message}"
    return Quarantine(boot_id=node.boot_id, since=failure.time or now, reason=failure.reason, evidence=evidence)


def _lasting(mac: ObservedMac) -> Quarantine | None:
    """The quarantine in status, unless the Mac has rebooted since. A Node without a boot ID ends none."""
    known = mac.profile.status.quarantine
    return known if known is not None and mac.boot_id in (None, known.boot_id) else None


# --- the status ------------------------------------------------------------------------------------------------------


def _conditions(mac: ObservedMac, held: Quarantine | None) -> tuple[Condition, ...]:
    conditions = tuple(c for c in mac.profile.status.conditions if c.type == ConditionType.QUARANTINED)
    if held is not None:
        text = (
            f"placements avoid {mac.name} until it reboots (run `sudo shutdown -r now` on it); in quarantine since "
            f"{held.since:%Y-%m-%d %H:%M:%S} UTC: {held.evidence}"
        )
        return set_condition(conditions, ConditionType.QUARANTINED, True, held.reason, text, now=mac.now)
    if conditions:
        return set_condition(
            conditions, ConditionType.QUARANTINED, False, Reason.REBOOTED, f"{mac.name} has rebooted", now=mac.now
        )
    return ()


def _status(groups: Iterable[GroupUse], held: Quarantine | None, conditions: Iterable[Condition]) -> Status:
    parts: Status = {
        "groups": [entry.dump() for entry in sorted(groups, key=lambda entry: entry.name)],
        "quarantine": held.dump() if held is not None else None,
        "conditions": [condition.dump() for condition in conditions],
    }
    return {name: value for name, value in parts.items() if value}


def decide(mac: ObservedMac, quarantine: Quarantine | None = None) -> MacDecision | None:
    """What to write for one Mac; None if its status is up to date. ``quarantine``: one that starts now."""
    before = mac.profile.status
    if mac.profile.metadata.deletion_timestamp is not None:
        return None
    held = quarantine or _lasting(mac)
    conditions = _conditions(mac, held)
    wanted = _status(uses(mac), held, conditions)
    known = _status(before.groups, before.quarantine, (c for c in before.conditions if c.type == ConditionType.QUARANTINED))
    if wanted == known:
        return None
    event = None
    if (held is None) != (before.quarantine is None):
        event = Occurrence(Reason.QUARANTINED if held else Reason.REBOOTED, conditions[0].message, warning=held is not None)
    return MacDecision(wanted, event)
