"""Whether an IP address is public, of a private network, or of no other machine. Pure.

For programs that send requests to servers that strangers name, and that can reach servers that the strangers cannot.
"""

import ipaddress
from enum import Enum

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Scope(Enum):
    """What an address leads to."""

    PUBLIC = "public"
    PRIVATE = "private"
    """Networks of sites and carriers; networks for tests and documentation, which some sites use."""
    NO_MACHINE = "no machine"
    """This machine, its links, groups of machines, and what is reserved."""


def _networks(*texts: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


_TRANSLATED = _networks("64:ff9b::/96", "64:ff9b:1::/48")
"""IPv4 addresses behind NAT64: the last four bytes."""
# From IANA's registries of special-purpose addresses. What ``ipaddress`` calls global differs between versions of Python, and
# includes networks of sites.
_NO_MACHINE = _networks("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""IPv6 addresses outside this network and the private ones are not addresses of other machines."""
_PRIVATE = _networks(
    "10.0.0.0/8",
    "100.64.0.0/10",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    # A site chooses how it translates these, so the last four bytes may be others.
    "64:ff9b:1::/48",
    # Teredo, tests and other protocols.
    "2001::/23",
    "2001:db8::/32",
    "3fff::/20",
    "fc00::/7",
    "fec0::/10",
)


def scope(text: str) -> Scope | None:
    """What an IP address leads to; it may have a zone. None if it is none, such as a name or ``127.1``."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    inner = _inner(address)
    if _is_no_machine(inner):
        return Scope.NO_MACHINE
    if any(one in network for one in (address, inner) for network in _PRIVATE):
        return Scope.PRIVATE
    return Scope.NO_MACHINE if inner.version == 6 and inner not in _UNICAST else Scope.PUBLIC


def _is_no_machine(address: Address) -> bool:
    return any(address in network for network in _NO_MACHINE)


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if any(address in network for network in _TRANSLATED):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    found = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo is not None else None)
    return found if found is not None else address
