"""Where a group goes, with ports. Pure.

Which Macs have no port left is told to the planner beforehand, so its answer is the best of those that can be carried out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from thunderfleet_crds.modeldeployment import ModelDeployment

from thunderfleet_operator.decide import manifests
from thunderfleet_operator.decide.ports import NoPortsLeft, PortSettings, allocate
from thunderfleet_operator.observe import snapshot
from thunderfleet_operator.observe.snapshot import RankPorts, Taken
from thunderfleet_operator.placement import Fleet, Placement, Unplaceable, plan


def _without_ports(
    fleet: Fleet,
    deployment: ModelDeployment,
    used: Taken,
    settings: PortSettings,
    kept: Mapping[str, RankPorts] | None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Macs that have no port for any rank, and those that have none for a ring; what they lack."""
    ring = manifests.RING_PORTS_PER_ATTEMPT * deployment.spec.bootstrap.attempts
    anywhere, of_ring = dict[str, str](), dict[str, str]()
    # All Macs of which nothing is taken or kept are alike.
    alike: list[tuple[str | None, str | None]] = []

    def lack(node: str, size: int) -> str | None:
        try:
            allocate(settings, (node,), used.ports, ring_size=size, gateway=deployment.spec.server.port, kept=kept)
        except NoPortsLeft as error:
            return error.lack
        return None

    for node in fleet.macs:
        plain = node not in used.ports and node not in (kept or {})
        lacks = alike[0] if plain and alike else (lack(node, 0), lack(node, ring))
        if plain and not alike:
            alike.append(lacks)
        if lacks[0] is not None:
            anywhere[node] = lacks[0]
        elif lacks[1] is not None:
            of_ring[node] = lacks[1]
    return anywhere, of_ring


def choose(
    fleet: Fleet,
    deployment: ModelDeployment,
    used: Taken,
    settings: PortSettings,
    *,
    current: tuple[str, ...] = (),
    avoid: Mapping[str, str] | None = None,
    kept: Mapping[str, RankPorts] | None = None,
    runners_up: int = 0,
) -> tuple[Placement, Sequence[RankPorts]] | Unplaceable:
    """``current``: where the group is. ``avoid``: Macs that are taken only when no others will do. ``kept``: the ports that
    the group had.
    """
    full, no_ring_ports = _without_ports(fleet, deployment, used, settings, kept)

    def planned(avoided: Mapping[str, str]) -> Placement | Unplaceable:
        request = snapshot.request(deployment.spec, current, {**avoided, **full})
        return plan(fleet, replace(request, no_ring_ports=no_ring_ports), runners_up=runners_up)

    found = planned(avoid or {})
    if isinstance(found, Unplaceable) and avoid:
        found = planned({})
    if isinstance(found, Unplaceable):
        return found
    return found, allocate(
        settings,
        found.nodes,
        used.ports,
        ring_size=manifests.ring_size(deployment, found),
        ring_ranks=manifests.ring_ranks(found),
        gateway=deployment.spec.server.port,
        kept=kept,
    )
