"""The next free port of a rank's block.

MLX binds its ring port with SO_REUSEPORT, so an orphan of an earlier attempt that still listens there causes no error: it
receives the peer's connection. A plain bind detects it. A port that failed is only tried again after all others.
"""

import socket
from collections.abc import Sequence


class NoFreePort(Exception):
    """Every port of the block is in use on this Mac."""


class PortBlock:
    """A rank's ring ports, used round-robin."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._next = 0

    def take(self, address: str) -> int:
        """The next port that can be bound at ``address``.

        Raises NoFreePort, or OSError when this Mac does not have the address.
        """
        for _ in self._ports:
            port = self._ports[self._next]
            self._next = (self._next + 1) % len(self._ports)
            if _free(address, port):
                return port
        first, last = (self._ports[0], self._ports[-1]) if self._ports else (0, 0)
        raise NoFreePort(f"no port of {first}-{last} on {address} is free")


def _free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, port))
            # Two sockets may be bound to one port while none listens; only listening conflicts.
            probe.listen(1)
        except OSError as error:
            if is_ours(address):
                return False
            raise error
        return True


def is_ours(address: str) -> bool:
    """Whether ``address`` belongs to an interface of this machine: only then can port 0 be bound there."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True
