"""The planner's view of the fleet: one immutable value, a snapshot of one moment.

It holds only what a decision needs. Sizes are bytes, speeds Mb/s. Indexes (the cables of a Mac, the connected components)
are computed on first use and carried over to the next snapshot when little has changed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import TypeVar

from thunderfleet_operator.placement.inputs.blocks import short_blocks
from thunderfleet_operator.placement.inputs.model import ModelFacts

T = TypeVar("T")
MAX_RANKS = 64
"""The planner's limit for any group."""
QUEUE_PAIRS = 10
"""Queue pairs of one RDMA device, shared by all groups."""
RDMA_YIELD = 0.65
"""Of a cable's negotiated speed, what RDMA typically carries: the rate that counts until one was measured."""
TCP_YIELD = 0.35
"""The same for TCP."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a Node; ``effect`` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Kind(IntEnum):
    """Kind of a network interface. The order of the members has no meaning."""

    THUNDERBOLT = 0
    ETHERNET = 1
    WIFI = 2
    OTHER = 3


@dataclass(frozen=True, slots=True)
class AddressKind:
    """An address's interface, and whether its network is private (RFC 1918; Tailscale's is not)."""

    kind: Kind
    private: bool = True
    speed_mbps: int = 0
    """Link speed of the interface."""


@lru_cache(maxsize=1024)
def _shared(kinds: tuple[AddressKind, ...]) -> tuple[AddressKind, ...]:
    """The same object for all Macs with the same interfaces, which saves memory."""
    return kinds


@dataclass(frozen=True, slots=True)
class Dials:
    """Addresses of other Macs that a Mac has dialled.

    The reached ones are columns of equal length, sorted by node and then address.
    """

    nodes: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    speeds: tuple[int, ...] = ()
    """Measured Mb/s of the slower direction, 0 if not measured; empty if nothing was measured."""
    failed: frozenset[tuple[str, str]] = frozenset()
    """Node and address of failed connection attempts. No connection was attempted to addresses that are neither reached nor
    here."""

    @classmethod
    def of(
        cls,
        pairs: Iterable[tuple[str, str]],
        speeds: Mapping[tuple[str, str], int] | None = None,
        failed: Iterable[tuple[str, str]] = (),
    ) -> "Dials":
        """Sorted columns of ``pairs`` (node, address) with the ``speeds`` measured between them."""
        ordered = sorted(set(pairs))
        known = tuple(speeds.get(pair, 0) for pair in ordered) if speeds else ()
        nodes, addresses = tuple(node for node, _ in ordered), tuple(address for _, address in ordered)
        return cls(nodes, addresses, known if any(known) else (), frozenset(failed))

    @property
    def rows(self) -> Iterable[tuple[str, str, int]]:
        """Node, address and speed."""
        return zip(self.nodes, self.addresses, self.speeds or (0,) * len(self.nodes), strict=True)

    def at(self, node: str) -> tuple[str, ...]:
        """Addresses at which ``node`` was reached."""
        return self.addresses[self._of(node)]

    def _of(self, node: str) -> slice:
        first = bisect_left(self.nodes, node)
        return slice(first, bisect_right(self.nodes, node, first))


@dataclass(frozen=True, slots=True)
class AddressKinds:
    """Kinds of a Mac's own addresses: two columns of equal length, which take a fraction of a dict's memory."""

    addresses: tuple[str, ...] = ()
    kinds: tuple[AddressKind, ...] = ()

    @classmethod
    def of(cls, kinds: Mapping[str, AddressKind]) -> "AddressKinds":
        """Columns of a mapping by address."""
        return cls(tuple(kinds), _shared(tuple(kinds.values())))

    def get(self, address: str, default: AddressKind) -> AddressKind:
        """The kind of an address of this Mac."""
        return self.kinds[self.addresses.index(address)] if address in self.addresses else default


@dataclass(frozen=True, slots=True)
class Mac:
    """One Mac. ``free_bytes`` is what a new rank may reserve: allocatable memory minus requests."""

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
    """Whether another group has a rank on it."""
    quarantine: str | None = None
    dials: Dials | None = None
    """What its agent has reached; None while the agent publishes no reachability."""
    kinds: AddressKinds = AddressKinds()
    """Kinds of its own addresses."""
    memory_bandwidth: int = 0
    """Measured memory bandwidth in MB/s; 0 if not measured."""
    gigaflops: int = 0
    """Measured rate of fp16 matrix multiplications in GFLOPS; 0 if not measured."""
    chip: str = ""
    """Name of the chip, such as ``Apple M3 Ultra``; empty if not known."""
    gpu_cores: int = 0
    """0 if not known."""
    build: str = ""
    """Build of macOS, such as ``25D125``; empty if not known."""
    store: str = ""
    """Folder of its model store; empty if it has none that can be used."""
    store_bytes: int = 0
    """Free bytes of the store."""
    absent_bytes: int = 0
    """Bytes of the requested model that it would have to fetch."""
    max_pods: int = 0
    """Number of pods that it runs at most; 0 if not known."""
    full: bool = False
    """Whether ``max_pods`` pods are bound to it."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of a cable. Unknown values are None; ``queue_pairs`` counts the free ones of its RDMA device."""

    node: str
    address: str | None = None
    device: str | None = None
    queue_pairs: int = QUEUE_PAIRS
    reported: bool = True
    """Whether its agent reports this end. Otherwise it is not known whether the end has an address."""


@dataclass(frozen=True, slots=True)
class CableFault:
    """What is known to be wrong with a cable. ``message`` is the rest of a sentence that begins with the cable's name."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Unsteady:
    """A cable that works again after an interruption, but gets no new placements yet.

    ``problem`` is the reason. ``last_resort``: whether it may be used if there is no other placement.
    """

    problem: str
    last_resort: bool


@dataclass(frozen=True, slots=True)
class Cable:
    """One Thunderbolt cable, the same in both directions. ``connected``: at least one end detects the other.

    A cable without ``fault`` may still be unusable: what is unknown, because an agent or a Node does not report, is no fault.
    """

    name: str
    a: End
    b: End
    speed_mbps: int = 0
    """Negotiated speed."""
    connected: bool = True
    rdma_problem: str | None = "it is not known whether RDMA can be used"
    """Why RDMA cannot be used; None when it can."""
    ring_mbps: int | None = None
    """Measured over sockets or MLX's ring, the slower direction."""
    rdma_mbps: int | None = None
    """Measured over RDMA, the slower direction."""
    in_use: bool = False
    """Whether another group's traffic runs over it."""
    fault: CableFault | None = None
    """Why nothing can be sent over the cable."""
    rdma_fault: CableFault | None = None
    """Why RDMA does not work on the cable."""
    unsteady: Unsteady | None = None
    rdma_unsteady: Unsteady | None = None
    """The same for RDMA alone."""
    unreliable: bool = False
    """Whether the cable was interrupted repeatedly."""
    connection: str = ""
    """Changes when the cable is unplugged and plugged in again."""

    @property
    def rdma_rate(self) -> int:
        """Mb/s over RDMA: measured, else expected."""
        return self.rdma_mbps or int(self.speed_mbps * RDMA_YIELD)

    @property
    def ring_rate(self) -> int:
        """Mb/s over TCP: measured, else expected."""
        return self.ring_mbps or int(self.speed_mbps * TCP_YIELD)

    def end(self, node: str) -> End:
        """The end at a Mac."""
        return self.a if self.a.node == node else self.b

    def other(self, node: str) -> str:
        """The Mac at the other end."""
        return self.b.node if self.a.node == node else self.a.node


def _unlike(before: Mapping[str, T], now: Mapping[str, T]) -> tuple[T, ...]:
    """The values that differ from the one of their name before. Fleets share the tables of cables that stay."""
    if now is before:
        return ()
    # Most are the same value, which a loop without a call finds in a fifth of the time.
    return tuple([value for name, value in now.items() if (old := before.get(name)) is not value and old != value])


def _by_mac(cables: Iterable[Cable]) -> Mapping[str, tuple[Cable, ...]]:
    """The cables that end at each Mac."""
    links: dict[str, list[Cable]] = {}
    for cable in cables:
        for node in dict.fromkeys((cable.a.node, cable.b.node)):
            links.setdefault(node, []).append(cable)
    return {node: tuple(ends) for node, ends in links.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """What turns one fleet into another: arguments of ``Fleet.changed``."""

    macs: tuple[Mac, ...] = ()
    cables: tuple[Cable, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.macs or self.cables or self.gone)


class Fleet:
    """All Macs and cables by name. Immutable: ``changed`` returns a new fleet."""

    def __init__(self, macs: Iterable[Mac] = (), cables: Iterable[Cable] = ()) -> None:
        by_name = {cable.name: cable for cable in cables}
        self._set({mac.name: mac for mac in macs}, by_name, _by_mac(by_name.values()), {})

    def _set(
        self,
        macs: Mapping[str, Mac],
        cables: Mapping[str, Cable],
        links: Mapping[str, tuple[Cable, ...]],
        reached_elsewhere: Mapping[str, frozenset[str]],
    ) -> None:
        self.macs = macs
        self.cables = cables
        self._links = links
        self._reached_elsewhere = reached_elsewhere
        # Indexes; None until they are needed.
        self._parts: dict[bool, dict[str, list[int]]] = {}
        self._reached_by: Mapping[str, tuple[str, ...]] | None = None
        self._reached_at: dict[str, frozenset[str]] = {}
        self._rates: tuple[frozenset[int], frozenset[int]] | None = None

    def links(self, node: str) -> tuple[Cable, ...]:
        """The cables that end at a Mac, in no particular order."""
        return self._links.get(node, ())

    def parts(self, *, lan: bool) -> Mapping[str, Sequence[int]]:
        """By Mac, numbers of parts of the fleet: every group of Macs is in one part.

        Macs are joined by connected cables, and with ``lan`` by everything that a Mac has reached.
        """
        found = self._parts.get(lan)
        if found is None:
            found = {name: [] for name in self.macs}
            for number, part in enumerate(short_blocks(self._adjacent(lan), MAX_RANKS)):
                for name in part:
                    found[name].append(number)
            self._parts[lan] = found
        return found

    def _adjacent(self, lan: bool) -> Mapping[str, Collection[str]]:
        adjacent: dict[str, set[str]] = {name: set() for name in self.macs}
        pairs = [(cable.a.node, cable.b.node) for cable in self.cables.values() if cable.connected]
        for name, mac in self.macs.items():
            pairs += [(name, peer) for peer in mac.dials.nodes] if lan and mac.dials is not None else ()
        for one, other in pairs:
            if one != other and one in adjacent and other in adjacent:
                adjacent[one].add(other)
                adjacent[other].add(one)
        return adjacent

    def reached_by(self, node: str) -> tuple[str, ...]:
        """Names of the Macs that have reached a Mac at any address."""
        if self._reached_by is None:
            found: dict[str, list[str]] = {}
            for mac in self.macs.values():
                for peer in dict.fromkeys(mac.dials.nodes) if mac.dials is not None else ():
                    found.setdefault(peer, []).append(mac.name)
            self._reached_by = {peer: tuple(names) for peer, names in found.items()}
        return self._reached_by.get(node, ())

    def fails(self, node: str, peer: str, address: str) -> bool:
        """Whether a connection attempt from a Mac to another one at this address has failed."""
        mac = self.macs.get(node)
        failed = mac.dials.failed if mac is not None and mac.dials is not None else frozenset[tuple[str, str]]()
        return (peer, address) in failed if failed else False

    def reaches(self, node: str, peer: str, address: str) -> bool:
        """Whether a Mac has reached another at this address."""
        mac = self.macs.get(node)
        return mac is not None and mac.dials is not None and address in mac.dials.at(peer)

    def reached_addresses(self, node: str) -> frozenset[str]:
        """Addresses at which any Mac has reached a Mac. Those of a Mac that is not ready are out of date."""
        found = self._reached_at.get(node)
        if found is None:
            dials = (self.macs[name].dials for name in self.reached_by(node) if self.macs[name].ready)
            here = frozenset(address for known in dials if known is not None for address in known.at(node))
            self._reached_at[node] = found = here | self._reached_elsewhere.get(node, frozenset())
        return found

    def rates(self, *, rdma: bool) -> frozenset[int]:
        """The rates of all cables in Mb/s, over RDMA or TCP."""
        if self._rates is None:
            cables = self.cables.values()
            self._rates = frozenset([c.ring_rate for c in cables]), frozenset([c.rdma_rate for c in cables])
        return self._rates[rdma]

    @cached_property
    def lan_rates(self) -> frozenset[int]:
        """All rates over a LAN in Mb/s."""
        macs = self.macs.values()
        shared = {id(mac.kinds.kinds): mac.kinds.kinds for mac in macs}
        found = {kind.speed_mbps for kinds in shared.values() for kind in kinds}
        for mac in macs:
            if mac.dials is not None and mac.dials.speeds:
                found.update(mac.dials.speeds)
        return frozenset(found)

    @cached_property
    def memory_rates(self) -> frozenset[int]:
        """The memory bandwidths of all Macs in MB/s."""
        return frozenset([mac.memory_bandwidth for mac in self.macs.values()])

    @cached_property
    def holders(self) -> tuple[tuple[tuple[ModelFacts, ...], tuple[str, ...]], ...]:
        """The models of Macs, and the names of the Macs that have exactly these, each in alphabetical order.

        In the order of the first Mac of each. Most Macs of a fleet have the same models, as the same value.
        """
        found: dict[int, tuple[tuple[ModelFacts, ...], list[str]]] = {}
        for name in sorted(self.macs):
            models = self.macs[name].models
            found.setdefault(id(models), (models, []))[1].append(name)
        return tuple((models, tuple(names)) for models, names in found.values())

    def changed(self, macs: Iterable[Mac] = (), cables: Iterable[Cable] = (), gone: Collection[str] = ()) -> "Fleet":
        """This fleet with the given Macs and cables replaced or added by name, and without those named in ``gone``.

        Takes a shallow copy of the tables. Indexes that the change cannot affect are carried over.
        """
        made = Fleet()
        table = dict(self.macs)
        same_macs = same_dials = same_models = not gone
        for mac in macs:
            old = table.get(mac.name)
            same_models = same_models and old is not None and old.models is mac.models
            same_macs = same_macs and old is not None
            same_dials = same_dials and old is not None and old.dials == mac.dials
            table[mac.name] = mac
        for name in gone:
            table.pop(name, None)
        new = tuple(cables)
        cables_and_links = self._changed_cables(new, gone) if new or gone else (self.cables, self._links)
        made._set(table, *cables_and_links, self._reached_elsewhere)
        if same_macs and all(map(self._is_joined_alike, new)):
            made._parts = {lan: found for lan, found in self._parts.items() if same_dials or not lan}
        if same_dials:
            made._reached_by = self._reached_by
        if not new and not gone:
            made._rates = self._rates
        if same_models and "holders" in self.__dict__:
            made.__dict__["holders"] = self.holders
        return made

    def part(self, nodes: Iterable[str]) -> "Fleet":
        """These Macs with the cables between them and what all Macs have reached. Takes no time for the rest of the fleet."""
        made = Fleet()
        macs = {name: self.macs[name] for name in nodes}
        cables = {cable.name: cable for name in macs for cable in self.links(name) if cable.other(name) in macs}
        made._set(macs, cables, _by_mac(cables.values()), {name: self.reached_addresses(name) for name in macs})
        return made

    @cached_property
    def last_resort(self) -> tuple[Cable, ...]:
        """The cables that may be used as a last resort, as steady ones."""
        found = []
        for cable in [cable for cable in self.cables.values() if cable.unsteady is not None or cable.rdma_unsteady is not None]:
            kept = [mark if mark is None or not mark.last_resort else None for mark in (cable.unsteady, cable.rdma_unsteady)]
            if (cable.unsteady, cable.rdma_unsteady) != tuple(kept):
                found.append(replace(cable, unsteady=kept[0], rdma_unsteady=kept[1]))
        return tuple(found)

    @cached_property
    def with_last_resort(self) -> "Fleet":
        """This fleet, in which these cables count as steady."""
        cables = self.last_resort
        return self.changed(cables=cables) if cables else self

    def difference(self, before: "Fleet") -> Difference:
        """What has changed since ``before``. Takes little time for values that both share."""
        return Difference(
            _unlike(before.macs, self.macs),
            _unlike(before.cables, self.cables),
            (*(before.macs.keys() - self.macs.keys()), *(before.cables.keys() - self.cables.keys())),
        )

    def _is_joined_alike(self, cable: Cable) -> bool:
        old = self.cables.get(cable.name)
        return old is not None and old.connected == cable.connected

    def _changed_cables(
        self, new: Sequence[Cable], gone: Collection[str]
    ) -> tuple[Mapping[str, Cable], Mapping[str, tuple[Cable, ...]]]:
        """Cables by name, and by Mac."""
        by_name, links = dict(self.cables), dict(self._links)
        replaced, added = {cable.name for cable in new} | set(gone), _by_mac(new)
        removed = [cable for name in replaced if (cable := by_name.pop(name, None)) is not None]
        for node in {*_by_mac(removed), *added}:
            kept = [cable for cable in links.get(node, ()) if cable.name not in replaced]
            links[node] = (*kept, *added.get(node, ()))
        by_name.update({cable.name: cable for cable in new})
        return by_name, links
