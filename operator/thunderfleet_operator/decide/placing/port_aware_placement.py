"""A placement for one group, with its ports.

The planner gets the Macs without free ports in advance, so the placement that it returns always has ports.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.reasons import Reason

from thunderfleet_operator.decide import manifests
from thunderfleet_operator.decide.group.lifecycle import NextStep
from thunderfleet_operator.decide.placing.ports import NoPortsLeft, PortSettings, allocate
from thunderfleet_operator.decide.placing.request import request
from thunderfleet_operator.observe.fleet.usage import Taken
from thunderfleet_operator.observe.objects.plans import GroupView
from thunderfleet_operator.observe.objects.pods import RankPorts
from thunderfleet_operator.placement import Fleet, Placement, Request, WherePlaced

NO_PORTS: Final = frozenset[int]()


def _without_ports(
    fleet: Fleet,
    deployment: ModelDeployment,
    taken: Taken,
    settings: PortSettings,
    kept: Mapping[str, RankPorts],
) -> tuple[dict[str, str], dict[str, str]]:
    """Macs without ports for any rank, and Macs without ports for a ring, each with the reason."""
    ring = manifests.RING_PORTS_PER_ATTEMPT * deployment.spec.bootstrap.attempts
    no_ports, no_ring_ports = dict[str, str](), dict[str, str]()

    def lack(node: str, size: int) -> str | None:
        try:
            allocate(settings, (node,), taken.ports, ring_size=size, gateway=deployment.spec.server.port, kept=kept)
        except NoPortsLeft as error:
            return error.lack
        return None

    # Computed once for all Macs with the same ports in use. In a large fleet, most have none in use, and lack none.
    free = lack("", 0), lack("", ring)
    alike: dict[frozenset[int], tuple[str | None, str | None]] = {NO_PORTS: free}
    for node in fleet.macs if any(free) else [node for node in fleet.macs if node in taken.ports or node in kept]:
        ports = taken.ports.get(node, NO_PORTS)
        found = alike.get(ports) if node not in kept else None
        if found is None:
            found = lack(node, 0), lack(node, ring)
            if node not in kept:
                alike[ports] = found
        any_rank, any_ring = found
        if any_rank is not None:
            no_ports[node] = any_rank
        elif any_ring is not None:
            no_ring_ports[node] = any_ring
    return no_ports, no_ring_ports


def question(
    fleet: Fleet,
    deployment: ModelDeployment,
    taken: Taken,
    settings: PortSettings,
    *,
    current: tuple[str, ...] = (),
    avoid: Mapping[str, str] | None = None,
    kept: Mapping[str, RankPorts] | None = None,
    corrections: Mapping[str, float] | None = None,
) -> WherePlaced:
    """Builds the request to the planner for one group.

    ``current``: the group's Macs by rank. ``avoid``: Macs to use only if no others will do, with the reason. ``kept``: by Mac
    the ports that the group has. ``corrections``: of predicted rates, by chip.
    """
    no_ports, no_ring_ports = _without_ports(fleet, deployment, taken, settings, kept or {})

    def asked(avoided: Mapping[str, str]) -> Request:
        wanted = request(deployment.spec, current, {**avoided, **no_ports}, corrections)
        return replace(wanted, no_ring_ports=no_ring_ports)

    requests: tuple[Request, ...] = (asked(avoid), asked({})) if avoid else (asked({}),)
    if fleet.last_resort:
        requests = tuple(one for request in requests for one in (request, replace(request, steady_cables=False)))
    return WherePlaced(fleet, requests)


@dataclass(frozen=True, slots=True)
class Asked:
    """Builds the question to the planner for a group's next step, with what is needed to allocate the ports of its answer."""

    question: WherePlaced
    taken: Taken
    kept: Mapping[str, RankPorts]


def asked_for(
    fleet: Fleet,
    deployment: ModelDeployment,
    taken: Taken,
    settings: PortSettings,
    view: GroupView,
    step: NextStep,
    current: tuple[str, ...],
    corrections: Mapping[str, float],
) -> Asked:
    """The next placement of a group, which has ``current`` Macs now. ``fleet`` and ``taken`` are without what it uses."""
    kept, failure = dict(view.kept_ports), step.failure
    if failure is not None and failure.reason == Reason.PORT_TAKEN and failure.node in kept:
        # A program outside of Kubernetes uses one of the group's ports there.
        taken = taken.with_ports(failure.node, kept.pop(failure.node).all)
    # A group that has lost a cable gets the best placement on any Macs, not only on its current ones.
    current = () if step.ends or step.returns else current
    found = question(fleet, deployment, taken, settings, current=current, avoid=step.avoid, kept=kept, corrections=corrections)
    return Asked(found, taken, kept)


def ports(
    found: Placement,
    deployment: ModelDeployment,
    taken: Taken,
    settings: PortSettings,
    kept: Mapping[str, RankPorts] | None = None,
) -> tuple[RankPorts, ...]:
    """The ports of a placement by rank. Raises ``NoPortsLeft``, but not for the answer to ``question``."""
    return allocate(
        settings,
        found.nodes,
        taken.ports,
        ring_size=manifests.ring_size(deployment, found),
        ring_ranks=manifests.ring_ranks(found),
        gateway=deployment.spec.server.port,
        kept=kept,
    )
