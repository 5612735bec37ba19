"""The API servers of a cluster, and the order in which they are tried. Pure.

A booting Mac starts with the list on disk. The list has the last state of the cluster: the addresses and names that each Mac
with a control plane has written into a ConfigMap (including Macs that are switched off), and the addresses that API servers
report.
"""

import ipaddress
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LIMIT = 16
"""API servers of one list. There are seldom more than five control planes, each with an address and a name."""
FILE_BYTES = 65536
CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/thunderfleet-api-servers"
SLICE = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

Json = Mapping[str, Any]


@dataclass(frozen=True)
class ApiServer:
    """Location of an API server: ``host`` is an address, or a name that is resolved for each connection."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_address(host: str) -> bool:
    """Whether ``host`` is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def api_server(host: object, port: object) -> ApiServer | None:
    """The API server at ``host`` and ``port``; None if one of them is invalid."""
    if not isinstance(host, str) or type(port) is not int or not 0 < port < 65536:
        return None
    return ApiServer(host, port) if is_address(host) or _NAME.fullmatch(host) else None


def to_text(servers: Iterable[ApiServer]) -> str:
    """The content of the file."""
    return json.dumps({"servers": [{"host": one.host, "port": one.port} for one in servers]}, indent=2) + "\n"


def from_text(text: str) -> tuple[ApiServer, ...]:
    """Parses the text of ``to_text``; invalid entries are left out. Raises ValueError for another file."""
    try:
        listed = json.loads(text)["servers"]
        found = [api_server(one.get("host"), one.get("port")) for one in listed]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("not a list of API servers") from None
    return bounded(found)


def bounded(servers: Iterable[ApiServer | None]) -> tuple[ApiServer, ...]:
    """The list without duplicates, up to a maximum length."""
    return tuple(dict.fromkeys(one for one in servers if one is not None))[:LIMIT]


def entry(address: str, names: Iterable[str]) -> str:
    """The entry of a Mac with a control plane in the ConfigMap: its address, and its names in Bonjour."""
    return " ".join((address, *(name for name in names if name.endswith(".local") and _NAME.fullmatch(name))))


def recorded_servers(config_map: Json | None, endpoints: Json | None, port: int) -> tuple[ApiServer, ...]:
    """The API servers recorded in the cluster: addresses first, then names."""
    written = [host for text in ((config_map or {}).get("data") or {}).values() for host in str(text).split()]
    listed = [host for one in (endpoints or {}).get("endpoints") or [] for host in one.get("addresses") or []]
    found = bounded(api_server(host, port) for host in (*written, *listed))
    return tuple(sorted(found, key=lambda one: not is_address(one.host)))


def several(servers: Iterable[ApiServer]) -> bool:
    """Whether these have more than one address. Each Mac with a control plane has one or two, and may have a name besides."""
    return sum(is_address(one.host) for one in servers) > 1


def order(
    servers: Sequence[ApiServer], failing: Collection[ApiServer], local: ApiServer | None, current: ApiServer | None
) -> list[ApiServer]:
    """The order in which to try the API servers.

    This Mac's own first, then the one in use, then the others; those that fail last, because a check may be wrong.
    """
    every = dict.fromkeys(one for one in (local, current, *servers) if one is not None and (one == local or one in servers))
    return sorted(every, key=lambda one: one in failing)
