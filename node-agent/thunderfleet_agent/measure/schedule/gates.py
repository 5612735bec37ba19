"""Which probes must wait, because a group uses what they need. Pure.

The operator writes a group into the NodeProfile before it creates the pods, so probes stop before the group starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunderfleet_crds.kinds.nodeprofile import GroupUse

from thunderfleet_agent.measure.schedule.probes import Need, Probe

UNKNOWN = "the agent has not read yet which groups use this Mac"


def blocked_by(probe: Probe, groups: Sequence[GroupUse] | None) -> str | None:
    """Why the probe must wait; None if it may run. ``groups`` is None until they have been read.

    A group without cables of its own uses the LAN, and so does a group between two Macs that none of its cables joins: the
    LAN is not measured then. A free cable is measured while a group uses others.
    """
    if groups is None:
        return UNKNOWN
    for group in groups:
        if Need.GPU in probe.needs:
            return f"group {group.name} uses this Mac"
        if Need.LINK in probe.needs:
            if probe.target.link in group.links:
                return f"group {group.name} uses this cable"
        elif probe.target.node in group.nodes:
            return f"group {group.name} uses both Macs"
        elif len(group.nodes) > 1 and not group.links:
            return f"group {group.name} uses the network"
    return None
