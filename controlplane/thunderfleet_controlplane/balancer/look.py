"""The list of this Mac's balancer, and which API servers accept connections. For messages, not for the balancer."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_controlplane.balancer.disk import read
from thunderfleet_controlplane.balancer.proxy import accepts
from thunderfleet_controlplane.balancer.servers import ApiServer, is_address

LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class Look:
    """``listens``: whether the balancer accepts connections. The API servers of its list, by whether they accept connections.

    ``names``: with a name instead of an address, and used only if no address answers.
    """

    listens: bool
    reached: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    unreadable: str = ""
    """Why the list cannot be read."""

    @property
    def known(self) -> int:
        """Number of API servers."""
        return len(self.reached) + len(self.lost)

    def values(self) -> dict[str, object]:
        """The values for JSON output."""
        return {
            "balancerListens": self.listens,
            "reachable": list(self.reached),
            "notReachable": list(self.lost),
            "names": list(self.names),
            "problem": self.unreadable or None,
        }


async def look(file: Path, port: int, own: ApiServer | None = None) -> Look:
    """Connect to the balancer (127.0.0.1, ``port``) and to every API server in its list ``file``; a few seconds at most.

    ``own``: the entry of this Mac's API server. It is reached at 127.0.0.1, whether this Mac has another address or not.
    """
    balancer = ApiServer(LOCAL, port)
    try:
        # ``read`` does not report the cause.
        await asyncio.to_thread(file.read_bytes)
    except OSError as error:
        return Look(await accepts(balancer), unreadable=f"{file}: {error.strerror}")
    local = () if own is None else (ApiServer(LOCAL, own.port),)
    servers = (*local, *(one for one in read(file) if one != own))
    addresses = [one for one in servers if is_address(one.host)]
    names = [one for one in servers if not is_address(one.host)]
    listens, *works = await asyncio.gather(accepts(balancer), *map(accepts, addresses))
    if not any(works):
        works += await asyncio.gather(*map(accepts, names))
        addresses += names
    pairs = list(zip(map(str, addresses), works, strict=True))
    return Look(
        listens,
        tuple(name for name, works in pairs if works),
        tuple(name for name, works in pairs if not works),
        tuple(map(str, names)),
    )
