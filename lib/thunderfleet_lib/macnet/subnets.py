"""The IPv4 addresses of the two ends of a cable. Pure.

Both ends compute them from the names of both Nodes and the numbers of both ports, so they agree without an exchange, and a
cable keeps its addresses across restarts and replugging. Each cable has a network of its own (/30): with one network for
several cables, macOS would send everything through one of them. Link-local addresses do not work for TCP either: macOS routes
all of 169.254.0.0/16 to one interface, and assigns other addresses after a cable was replugged.
"""

from __future__ import annotations

import hashlib
from ipaddress import IPv4Interface, IPv4Network
from typing import Final

DEFAULT_NETWORK: Final = IPv4Network("10.128.0.0/9")
"""Its two million /30 networks are enough for two cables of one Mac to hardly ever get the same one."""
PREFIX: Final = 30

End = tuple[str, int]
"""A Node, and the number of the port."""


def cable_address(whole: IPv4Network, own: End, other: End) -> IPv4Interface:
    """The address of the end ``own``, from ``whole``. Raises ValueError if both ends are the same."""
    if own == other:
        raise ValueError(f"a cable has two different ends, not {own} twice")
    first, second = sorted((own, other))
    name = f"{first[0]}.tb{first[1]}--{second[0]}.tb{second[1]}"
    count = 1 << (PREFIX - whole.prefixlen)
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % count
    address = whole.network_address + 4 * number + (1 if own == first else 2)
    return IPv4Interface(f"{address}/{PREFIX}")
