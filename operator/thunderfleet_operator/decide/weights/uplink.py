"""The probable speed of a Mac's connection to the hub: that of the interface with the Mac's address (its default route)."""

from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.vocabulary import InterfaceKind

from thunderfleet_operator.observe.fleet.weights import bytes_done

USUAL_MBPS = {
    InterfaceKind.ETHERNET: 1000,
    InterfaceKind.BRIDGE: 1000,
    InterfaceKind.THUNDERBOLT: 1000,
    InterfaceKind.WIFI: 300,
}
"""Assumed rates for interfaces without a known link speed. macOS reports none for Wi-Fi. A Thunderbolt cable leads to another
Mac that shares its connection."""
UNKNOWN_MBPS = 100
"""Assumed rate for a VPN, for other interfaces, and for Macs whose agent has not reported its interfaces."""


def uplink_mbps(profile: NodeProfile | None) -> int:
    """Mb/s of the Mac's link to its network."""
    status = profile.status if profile is not None else None
    if status is None or status.agent is None or status.network is None:
        return UNKNOWN_MBPS
    for interface in status.network.interfaces:
        if any(one.address == status.agent.address for one in interface.addresses):
            usual = USUAL_MBPS.get(interface.kind)
            # The speed of a Thunderbolt cable does not limit the connection that it leads to.
            known = interface.speed_mbps if interface.kind in (InterfaceKind.ETHERNET, InterfaceKind.WIFI) else None
            return known or usual or UNKNOWN_MBPS
    return UNKNOWN_MBPS


def download_order(name: str, profile: NodeProfile | None, manifest: str | None) -> tuple[int, int, int, str]:
    """Sorts Macs by preference for a download: most files present, then fastest connection, then most free disk space."""
    store = profile.status.store if profile is not None else None
    free = store.free_bytes if store is not None and not store.problem else -1
    return (-bytes_done(profile, manifest), -uplink_mbps(profile), -free, name)
