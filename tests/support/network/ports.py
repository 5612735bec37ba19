"""Ports for programs that a test starts: free, outside the kernel's ephemeral range, and others in each worker of pytest.

A port that was bound with 0 and closed again is one of those that the kernel gives to every new connection and listener, so on
a busy machine another process may have it before the program that is to listen there.
"""

import itertools
import os
import socket

FIRST, COUNT = 21_000, 8_900


def _mine() -> range:
    """This worker's part of the range."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = COUNT // max(worker + 1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    return range(FIRST + worker * share, FIRST + (worker + 1) * share)


def _from_own_place() -> "itertools.cycle[int]":
    """All of them, again and again. Other runs of pytest, which have the same workers, begin elsewhere."""
    mine = _mine()
    begin = os.getpid() * 131 % len(mine)
    return itertools.cycle((*mine[begin:], *mine[:begin]))


_NEXT = _from_own_place()


def claim(count: int, *addresses: str) -> list[int]:
    """Ports that are free on each of the addresses (127.0.0.1 if none is given). No port is given again soon."""
    found: list[int] = []
    for candidate in itertools.islice(_NEXT, COUNT):
        if len(found) == count:
            break
        try:
            for address in addresses or ("127.0.0.1",):
                with socket.socket() as probe:
                    probe.bind((address, candidate))
        except OSError:
            continue
        found.append(candidate)
    assert len(found) == count, "no port is free"
    return found
