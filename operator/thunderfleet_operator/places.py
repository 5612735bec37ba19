"""Where a group goes, with ports: the planner's answer, again without the Macs that have no port left. Pure."""

from collections.abc import Mapping, Sequence

from thunderfleet_crds.modeldeployment import ModelDeployment

from thunderfleet_operator import desired, snapshot
from thunderfleet_operator.placement import Fleet, Placement, Unplaceable, plan
from thunderfleet_operator.ports import NoPortsLeft, PortSettings, RankPorts, allocate
from thunderfleet_operator.snapshot import Taken


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
    the group had."""
    shunned, full = dict(avoid or {}), dict[str, str]()
    while True:
        request = snapshot.request(deployment.spec, current, {**shunned, **full})
        found = plan(fleet, request, runners_up=runners_up)
        if isinstance(found, Unplaceable):
            if shunned:
                shunned = {}
                continue
            return found
        try:
            ports = allocate(
                settings,
                found.nodes,
                used.ports,
                ring_size=desired.ring_size(deployment, found),
                gateway=deployment.spec.server.port,
                kept=kept,
            )
        except NoPortsLeft as error:
            full[error.node] = error.lack
            continue
        return found, ports
