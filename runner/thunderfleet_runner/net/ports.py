"""The next port of a rank's block.

MLX binds its ring port with SO_REUSEPORT, so an orphan of an earlier attempt that still listens there does not show as an
error: it steals the peer. A plain bind shows it. And a port that failed once is left alone until its turn comes again.
"""

import socket
from collections.abc import Sequence


class NoFreePort(Exception):
    """Every port of the block is taken on this Mac."""


class PortBlock:
    """A rank's ring ports, taken in order, round and round."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._next = 0

    def take(self, address: str) -> int:
        """The next port that a plain bind to ``address`` accepts.

        Raises NoFreePort, or OSError when the address is not ours.
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
            # Two sockets may be bound to one port as long as none listens; the one that listens is the one that matters.
            probe.listen(1)
        except OSError as error:
            if is_ours(address):
                return False
            raise error
        return True


def is_ours(address: str) -> bool:
    """Whether ``address`` belongs to an interface of this machine: only then can port 0 be bound on it."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True
