"""How fast a Mac probably reaches the hub: by the interface that has the Mac's address, which is that of its default route."""

from thunderfleet_crds.nodeprofile import NodeProfile
from thunderfleet_crds.vocabulary import InterfaceKind

from thunderfleet_operator.observe.weights import bytes_done

USUAL_MBPS = {
    InterfaceKind.ETHERNET: 1000,
    InterfaceKind.BRIDGE: 1000,
    InterfaceKind.THUNDERBOLT: 1000,
    InterfaceKind.WIFI: 300,
}
"""Of an interface without a known link speed. macOS reports none for Wi-Fi. Behind a Thunderbolt cable, another Mac shares its
connection."""
UNKNOWN_MBPS = 100
"""Of a VPN, of other interfaces, and of a Mac whose agent has not reported its interfaces."""


def uplink_mbps(profile: NodeProfile | None) -> int:
    """Mbit/s of the Mac's link to its network."""
    status = profile.status if profile is not None else None
    if status is None or status.agent is None or status.network is None:
        return UNKNOWN_MBPS
    for interface in status.network.interfaces:
        if any(one.address == status.agent.address for one in interface.addresses):
            usual = USUAL_MBPS.get(interface.kind)
            # The speed of a Thunderbolt cable says nothing about the connection behind it.
            known = interface.speed_mbps if interface.kind in (InterfaceKind.ETHERNET, InterfaceKind.WIFI) else None
            return known or usual or UNKNOWN_MBPS
    return UNKNOWN_MBPS


def download_order(name: str, profile: NodeProfile | None, manifest: str | None) -> tuple[int, int, int, str]:
    """Macs in the order in which they are preferred for the download: most of the files, fastest connection, most free disk."""
    store = profile.status.store if profile is not None else None
    free = store.free_bytes if store is not None and not store.problem else -1
    return (-bytes_done(profile, manifest), -uplink_mbps(profile), -free, name)
