"""Changes to the fleet of a file: cables that are added, Macs that are removed, and which cables can be used then."""

import re
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.names import API_VERSION
from thunderfleet_crds.vocabulary import RDMADeviceState
from thunderfleet_lib.kube import Json

from thunderfleet_operator.decide import link_status
from thunderfleet_operator.observe.objects.nodes import is_ready
from thunderfleet_operator.plan_cli.read import BadInput
from thunderfleet_operator.watch.cache import LINKS, NODEPROFILES, NODES, PODS, Cache

MAX_GBPS = 200
_CABLE = re.compile(r"cable\s+(?P<a>[^\s:]+):(?P<pa>\d+)\s+(?P<b>[^\s:]+):(?P<pb>\d+)\s+(?P<gbps>\d+)")
_FORM = "must read 'cable MAC:PORT MAC:PORT GBPS', such as 'cable studio-1:1 studio-2:1 80'"


@dataclass(frozen=True, slots=True)
class NewCable:
    """A cable between two ports, as ``--what-if`` describes it."""

    ends: tuple[tuple[str, int], tuple[str, int]]
    """Mac and receptacle, in order."""
    mbps: int

    @classmethod
    def parse(cls, text: str) -> "NewCable":
        """From the text of ``--what-if``. Raises ``BadInput``."""
        found = _CABLE.fullmatch(text.strip())
        if found is None:
            raise BadInput(f"--what-if {text!r}: {_FORM}")
        one, other = sorted(((found["a"], int(found["pa"])), (found["b"], int(found["pb"]))))
        if one[0] == other[0] or not 0 < int(found["gbps"]) <= MAX_GBPS:
            raise BadInput(f"--what-if {text!r}: {_FORM}, between two Macs, at most {MAX_GBPS} Gb/s")
        return cls((one, other), int(found["gbps"]) * 1000)


def without(cache: Cache, names: list[str]) -> None:
    """Removes Macs, as if they were switched off permanently."""
    for name in names:
        if name not in cache[NODES].items:
            raise BadInput(f"--without {name}: the fleet has no such Node")
        del cache[NODES].items[name]
        cache[NODEPROFILES].items.pop(name, None)
        for key, link in list(cache[LINKS].items.items()):
            if name in {end["node"] for end in link["spec"].values()}:
                del cache[LINKS].items[key]
        for key, pod in list(cache[PODS].items.items()):
            if (pod.get("spec") or {}).get("nodeName") == name:
                del cache[PODS].items[key]


def plug_in(cache: Cache, cable: NewCable) -> None:
    """Adds a cable, which replaces the cables that were plugged into its ports."""
    links = cache[LINKS].items
    for key, link in list(links.items()):
        if {(end["node"], end["port"]) for end in link["spec"].values()} & set(cable.ends):
            del links[key]
    (one, a), (other, b) = cable.ends
    name = f"{one}.tb{a}--{other}.tb{b}"
    pair = _unused_addresses(cache)
    endpoints = [
        _endpoint(cache, node, port, cable.mbps, address) for (node, port), address in zip(cable.ends, pair, strict=True)
    ]
    links[name] = {
        "apiVersion": API_VERSION,
        "kind": "ThunderboltLink",
        "metadata": {"name": name, "uid": f"what-if/{name}", "resourceVersion": f"what-if/{name}"},
        "spec": {"a": {"node": one, "port": a}, "b": {"node": other, "port": b}},
        "status": {"endpoints": endpoints},
    }


def _unused_addresses(cache: Cache) -> tuple[str, str]:
    """Returns two link-local addresses of one network that no cable and no reachability entry has."""
    ends = (end for link in cache[LINKS].items.values() for end in (link.get("status") or {}).get("endpoints") or ())
    dials = (
        dial for item in cache[NODEPROFILES].items.values() for dial in (item.get("status") or {}).get("reachability") or ()
    )
    used = {entry.get("address") for entry in (*ends, *dials)}
    pairs = ((f"169.254.{i}.{4 * j + 1}", f"169.254.{i}.{4 * j + 2}") for i in range(1, 255) for j in range(63))
    return next((pair for pair in pairs if used.isdisjoint(pair)), ("169.254.1.1", "169.254.1.2"))


def _endpoint(cache: Cache, node: str, receptacle: int, mbps: int, address: str) -> Json:
    """One end, as its agent would report it; a port that is up has a device with an address."""
    item = cache[NODEPROFILES].items.get(node)
    if item is None:
        raise BadInput(f"--what-if: {node} has no NodeProfile in the fleet")
    status = NodeProfile.load(item).status
    ports = status.thunderbolt.ports if status.thunderbolt else ()
    port = next((port for port in ports if port.receptacle == receptacle), None)
    if port is None:
        known = ", ".join(str(port.receptacle) for port in ports) or "none"
        raise BadInput(f"--what-if: {node} has no port {receptacle}; its ports are {known}")
    changed = item["status"]
    for entry in changed["thunderbolt"]["ports"]:
        if entry["receptacle"] == receptacle:
            entry |= {"connected": True, "speedMbps": mbps}
    for device in (changed.get("rdma") or {}).get("devices") or ():
        if device["name"] == port.rdma_device:
            device |= {"state": RDMADeviceState.ACTIVE.value, "gid": device.get("gid") or f"::ffff:{address}"}
    end: Json = {"node": node, "port": receptacle, "speedMbps": mbps, "address": address, "seesPeer": True}
    if port.interface:
        end["interface"] = port.interface
    if port.rdma_device:
        end |= {"rdmaDevice": port.rdma_device, "rdmaState": RDMADeviceState.ACTIVE.value}
    return end


def judge_links(cache: Cache, now: datetime) -> None:
    """Decides which cables can be used, as the operator does, because an edited file may have missing or wrong conditions."""
    profiles = {name: NodeProfile.load(item) for name, item in cache[NODEPROFILES].items.items()}
    ready = frozenset(name for name, node in cache[NODES].items.items() if is_ready(node))
    for name, item in list(cache[LINKS].items.items()):
        link = ThunderboltLink.load(item)
        found = link_status.summary(link, profiles, now, ready)
        cache[LINKS].items[name] = {**item, "status": {**(item.get("status") or {}), **found}}
