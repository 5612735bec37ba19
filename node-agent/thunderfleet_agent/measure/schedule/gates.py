"""What must not be measured now, because a group uses it or is being placed on it. Pure.

The operator writes a group into the NodeProfile before it makes the pods, so this is known before the group is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from thunderfleet_crds.nodeprofile import GroupUse

from thunderfleet_agent.measure.schedule.probes import Need, Probe

UNKNOWN = "it is not known yet which groups have this Mac"


def closed(probe: Probe, groups: Sequence[GroupUse] | None) -> str | None:
    """Why the probe may not run (None: it may). ``groups`` None: they have not been read yet.

    A group without cables of its own talks over the LAN, and so does one whose member is not at the other end of any of its
    cables: then nothing else is measured there. A free cable is measured while a group uses others.
    """
    if groups is None:
        return UNKNOWN
    for group in groups:
        if Need.GPU in probe.needs:
            return f"the group {group.name} has this Mac"
        if Need.LINK in probe.needs:
            if probe.target.link in group.links:
                return f"the group {group.name} uses this cable"
        elif probe.target.node in group.nodes:
            return f"the group {group.name} has both Macs"
        elif len(group.nodes) > 1 and not group.links:
            return f"the group {group.name} talks over the network"
    return None
