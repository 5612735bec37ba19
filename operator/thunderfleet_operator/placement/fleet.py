"""The fleet as the planner sees it: one immutable value, taken at one moment.

Only what a decision needs stands here. Sizes are bytes, speeds Mbit/s. What a search needs at once (the cables of a Mac, the
sets of Macs that cables join) is worked out once a fleet, and carried over to the next when few things have changed.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache

QUEUE_PAIRS = 10
"""Queue pairs of one RDMA device, whoever uses them."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a Node; ``effect`` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class KVLayer:
    """What one layer's cache takes. ``window_tokens`` None: every token is kept."""

    fixed_bytes: int = 0
    bytes_per_token: int = 0
    window_tokens: int | None = None
    tensor_split: bool = False


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Tensor parallelism over one world size: bytes of weights per rank, or why mlx-lm refuses it."""

    world_size: int
    bytes_per_rank: tuple[int, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model on one Mac's disk, and what it needs. ``sized`` is False while the figures are not known."""

    path: str
    repository: str | None = None
    revision: str | None = None
    bytes: int = 0
    complete: bool = True
    problem: str | None = None
    sized: bool = True
    tensor: tuple[TensorFacts, ...] = ()
    layer_bytes: tuple[int, ...] = ()
    shared_bytes: int = 0
    pipeline_refusal: str | None = None
    kv: tuple[KVLayer, ...] = ()
    prefill_bytes: int = 0
    """Workspace of one prefill step at the start of a sequence."""
    prefill_bytes_per_token: int = 0
    """What each token of context adds to it."""


class Kind(IntEnum):
    """What an interface is; the numbers only tell kinds apart."""

    THUNDERBOLT = 0
    ETHERNET = 1
    WIFI = 2
    OTHER = 3


@dataclass(frozen=True, slots=True)
class AddressKind:
    """Of one address: its interface, and whether it is of a private network (RFC 1918; Tailscale's is not)."""

    kind: Kind
    private: bool = True
    speed_mbps: int = 0
    """Of its interface."""


@lru_cache(maxsize=1024)
def _alike(kinds: tuple[AddressKind, ...]) -> tuple[AddressKind, ...]:
    """One value for the many Macs that have the same interfaces."""
    return kinds


@dataclass(frozen=True, slots=True)
class Dials:
    """Which addresses of which other Macs a Mac has dialled: columns of equal length, by node and then address."""

    nodes: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    speeds: tuple[int, ...] = ()
    """Mbit/s as measured, the worse way, 0 where there is no measurement; no column where there is none at all."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], speeds: Mapping[tuple[str, str], int] | None = None) -> "Dials":
        """``speeds``: by node and address."""
        ordered = sorted(set(pairs))
        known = tuple(speeds.get(pair, 0) for pair in ordered) if speeds else ()
        return cls(tuple(node for node, _ in ordered), tuple(address for _, address in ordered), known if any(known) else ())

    @property
    def ways(self) -> Iterable[tuple[str, str, int]]:
        """Node, address and speed, one after the other."""
        return zip(self.nodes, self.addresses, self.speeds or (0,) * len(self.nodes), strict=True)

    def at(self, node: str) -> tuple[str, ...]:
        """Addresses at which ``node`` answered."""
        first = last = bisect_left(self.nodes, node)
        while last < len(self.nodes) and self.nodes[last] == node:
            last += 1
        return self.addresses[first:last]


@dataclass(frozen=True, slots=True)
class AddressKinds:
    """The kinds of a Mac's own addresses: two columns of equal length, a fraction of what a dict takes."""

    addresses: tuple[str, ...] = ()
    kinds: tuple[AddressKind, ...] = ()

    @classmethod
    def of(cls, kinds: Mapping[str, AddressKind]) -> "AddressKinds":
        return cls(tuple(kinds), _alike(tuple(kinds.values())))

    def get(self, address: str, otherwise: AddressKind) -> AddressKind:
        return self.kinds[self.addresses.index(address)] if address in self.addresses else otherwise


@dataclass(frozen=True, slots=True)
class Mac:
    """One Mac. ``free_bytes`` is what a new rank may reserve there (allocatable less what is requested)."""

    name: str
    address: str | None
    free_bytes: int
    allocatable_bytes: int = 0
    ready: bool = True
    schedulable: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    backends: frozenset[str] = frozenset({"ring"})
    mlx_version: str | None = None
    mlx_lm_version: str | None = None
    profiled: bool = True
    """Whether its agent has published a NodeProfile."""
    models: tuple[ModelFacts, ...] = ()
    in_use: bool = False
    """Whether another group has a rank there."""
    quarantine: str | None = None
    dials: Dials | None = None
    """What its agent has dialled; None while its agent publishes no such facts."""
    kinds: AddressKinds = AddressKinds()
    """Of its own addresses."""
    memory_megabytes: int = 0
    """Memory bandwidth in MB/s, as measured; 0 while it has not been."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of a cable. What is not known yet is None; ``queue_pairs`` are those left of its RDMA device."""

    node: str
    address: str | None = None
    device: str | None = None
    queue_pairs: int = QUEUE_PAIRS


@dataclass(frozen=True, slots=True)
class Cable:
    """One Thunderbolt cable, the same in both directions. ``connected``: at least one end sees the other."""

    name: str
    a: End
    b: End
    speed_mbps: int = 0
    """As negotiated."""
    connected: bool = True
    rdma_lack: str | None = "it is not known whether RDMA can be used"
    """Why RDMA cannot be used, as a sentence's end after the cable's name; None when it can."""
    ring_mbps: int | None = None
    """As measured over sockets or a ring, the worse direction."""
    rdma_mbps: int | None = None
    in_use: bool = False
    """Whether another group's traffic runs over it."""

    def end(self, node: str) -> End:
        return self.a if self.a.node == node else self.b

    def other(self, node: str) -> str:
        return self.b.node if self.a.node == node else self.a.node


class Fleet:
    """All Macs and cables by name. A value: whoever wants another makes one with ``changed``."""

    def __init__(self, macs: Iterable[Mac] = (), cables: Iterable[Cable] = ()) -> None:
        self.macs: Mapping[str, Mac] = {mac.name: mac for mac in macs}
        self.cables: Mapping[str, Cable] = {cable.name: cable for cable in cables}
        links: dict[str, list[Cable]] = {}
        for cable in self.cables.values():
            one, other = cable.a.node, cable.b.node
            links.setdefault(one, []).append(cable)
            if other != one:
                links.setdefault(other, []).append(cable)
        self._links: Mapping[str, tuple[Cable, ...]] = {node: tuple(cables) for node, cables in links.items()}

    def links(self, node: str) -> tuple[Cable, ...]:
        """The cables that end at a Mac, in no order."""
        return self._links.get(node, ())

    @cached_property
    def islands(self) -> tuple[tuple[str, ...], ...]:
        """Names of Macs that are joined by connected cables, directly or over others; each Mac is on one island."""
        seen: set[str] = set()
        found: list[tuple[str, ...]] = []
        for start in self.macs:
            if start in seen:
                continue
            seen.add(start)
            island = [start]
            for node in island:
                for cable in self._links.get(node, ()):
                    peer = cable.b.node if cable.a.node == node else cable.a.node
                    if peer not in seen and cable.connected and peer in self.macs:
                        seen.add(peer)
                        island.append(peer)
            found.append(tuple(island))
        return tuple(found)

    @cached_property
    def _dialled_by(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for mac in self.macs.values():
            for node in dict.fromkeys(mac.dials.nodes) if mac.dials is not None else ():
                found.setdefault(node, []).append(mac.name)
        return {node: tuple(names) for node, names in found.items()}

    def dialled_by(self, node: str) -> tuple[str, ...]:
        """Who has reached a Mac, at any address."""
        return self._dialled_by.get(node, ())

    def reached(self, node: str) -> frozenset[str]:
        """The addresses at which anybody has reached a Mac."""
        dials = (self.macs[name].dials for name in self.dialled_by(node))
        return frozenset(address for known in dials if known is not None for address in known.at(node))

    @cached_property
    def top_mbps(self) -> int:
        """No cable is faster."""
        return max((max(c.speed_mbps, c.ring_mbps or 0, c.rdma_mbps or 0) for c in self.cables.values()), default=0)

    @cached_property
    def top_lan_mbps(self) -> int:
        """No way over a LAN is faster."""
        macs = self.macs.values()
        told = max((kind.speed_mbps for mac in macs for kind in mac.kinds.kinds), default=0)
        return max(told, max((max(mac.dials.speeds) for mac in macs if mac.dials is not None and mac.dials.speeds), default=0))

    def changed(self, macs: Iterable[Mac] = (), cables: Iterable[Cable] = (), gone: Collection[str] = ()) -> "Fleet":
        """The fleet with these Macs and cables in place of those of their names, and without those named in ``gone``.

        Costs a shallow copy of the tables; what is known of islands stays when neither a Mac nor a cable came or went.
        """
        made = Fleet.__new__(Fleet)
        table, wires = dict(self.macs), dict(self.cables)
        links = self._links
        same = not gone
        dialled = True
        for mac in macs:
            old_mac = table.get(mac.name)
            same = same and old_mac is not None
            dialled = dialled and old_mac is not None and old_mac.dials == mac.dials
            table[mac.name] = mac
        new = tuple(cables)
        if new or gone:
            touched: dict[str, tuple[Cable, ...]] = dict(links)
            replaced = {cable.name for cable in new} | set(gone)
            for name in replaced:
                old = wires.pop(name, None)
                if name in gone:
                    table.pop(name, None)
                for node in {old.a.node, old.b.node} if old else ():
                    touched[node] = tuple(entry for entry in touched.get(node, ()) if entry.name != name)
            for cable in new:
                old = self.cables.get(cable.name)
                same = same and old is not None and old.connected == cable.connected
                wires[cable.name] = cable
                for node in {cable.a.node, cable.b.node}:
                    touched[node] = (*touched.get(node, ()), cable)
            links = touched
        made.macs, made.cables, made._links = table, wires, links
        if same and "islands" in self.__dict__:
            made.__dict__["islands"] = self.islands
        if dialled and not gone and "_dialled_by" in self.__dict__:
            made.__dict__["_dialled_by"] = self._dialled_by
        if not new and not gone and "top_mbps" in self.__dict__:
            made.__dict__["top_mbps"] = self.top_mbps
        return made
