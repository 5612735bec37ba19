"""The decision: which Macs take which ranks of a group, or why none can.

Preferences, in this order: where the group is already; fewest Macs that fit; Macs that no other group uses; the highest
worst cable; the evenest use of memory; the smallest leftover (big Macs stay free for big models); names, so that equal
inputs give equal outputs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from thunderfleet_operator.placement.eligible import lack, wanted_model
from thunderfleet_operator.placement.fleet import Fleet, Mac, ModelFacts
from thunderfleet_operator.placement.memory import gib, pipeline_bytes, share_layers, tensor_bytes
from thunderfleet_operator.placement.request import (
    Lack,
    NearMiss,
    Placement,
    RankPlacement,
    Request,
    Split,
    Transport,
    Unplaceable,
    WantedSplit,
    WantedTransport,
)
from thunderfleet_operator.placement.rings import Graph, cable_graph, cycles, orders

_JACCL = (WantedTransport.JACCL, WantedTransport.JACCL_RING)
NEAR_MISSES = 3


class _Candidates:
    """The Macs that may hold one folder of the model, and the rings that they can form."""

    def __init__(self, fleet: Fleet, request: Request, path: str, macs: Mapping[str, Mac]) -> None:
        self.request = request
        self.path = path
        self.macs = macs
        self.facts: dict[str, ModelFacts] = {
            name: next(model for model in wanted_model(mac, request) if model.path == path) for name, mac in macs.items()
        }
        ring = [name for name, mac in macs.items() if "ring" in mac.backends]
        self.graph: Graph = {} if request.transport in _JACCL else cable_graph(fleet.cables, ring)

    def splits(self, names: Sequence[str]) -> tuple[Split, ...]:
        if len(names) == 1:
            return (Split.NONE,)
        wanted = self.request.split
        facts = self.facts[names[0]]
        pipeline = (Split.PIPELINE,) if facts.layer_bytes and not facts.pipeline_refusal else ()
        if wanted is WantedSplit.TENSOR:
            return (Split.TENSOR,)
        if wanted is WantedSplit.PIPELINE:
            return pipeline
        return (*pipeline, Split.TENSOR)

    def same_model(self, names: Sequence[str]) -> bool:
        """One path is not yet one model: the folders must agree in what is in them."""
        kinds = {(self.facts[name].bytes, self.facts[name].layer_bytes, self.facts[name].revision) for name in names}
        return len(kinds) == 1

    def numbered(self, cycle: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The ways to number this ring, best first: rank 0 is whom most others have dialled, then who has most room."""

        def preference(order: tuple[str, ...]) -> tuple[object, ...]:
            first = self.macs[order[0]]
            dialled = sum(first.name in self.macs[name].reached for name in order[1:])
            return (-dialled, -first.free_bytes, order)

        return sorted(orders(cycle), key=preference)

    def fit(self, order: Sequence[str], split: Split) -> tuple[list[RankPlacement], str] | None:
        """Ranks in this order if each has room, and a remark for people."""
        memory = self.request.memory
        model = self.facts[order[0]]
        macs = [self.macs[name] for name in order]
        layers: list[tuple[int, int] | None] = [None] * len(order)
        remark = ""
        if split is Split.PIPELINE:
            shared = share_layers(model, memory, [mac.free_bytes for mac in macs])
            if shared is None:
                return None
            layers = list(shared[0])
            needs: list[int | None] = [pipeline_bytes(model, memory, *span) for span in shared[0]]
            counts = "/".join(str(last - first) for first, last in shared[0])
            remark = f"layers {counts} by free memory" if shared[1] else f"layers {counts}, moved until every rank fits"
        else:
            needs = [tensor_bytes(self.facts[name], memory, len(order), rank) for rank, name in enumerate(order)]
        ranks: list[RankPlacement] = []
        for rank, (mac, need) in enumerate(zip(macs, needs, strict=True)):
            if need is None or need > mac.free_bytes or mac.address is None:
                return None
            ring_address = None
            if len(order) > 1:
                # A rank listens for the one before it, on its own end of the cable between the two.
                ring_address = self.graph[order[rank - 1]][mac.name].end(mac.name).address
            ranks.append(RankPlacement(rank, mac.name, mac.address, need, layers[rank], ring_address))
        return ranks, remark

    def place(self, orders_: Iterable[Sequence[str]], why: str) -> Placement | None:
        """The first of these orders that fits, with the first split that does."""
        listed = [tuple(order) for order in orders_]
        if not listed or not self.same_model(listed[0]):
            return None
        for split in self.splits(listed[0]):
            for order in listed:
                fitted = self.fit(order, split)
                if fitted is None:
                    continue
                ranks, remark = fitted
                size = len(order)
                cables = tuple(self.graph[order[i]][order[(i + 1) % size]].name for i in range(size)) if size > 1 else ()
                transport = Transport.RING if size > 1 else Transport.NONE
                parts = [why, _kind(transport, split, size), remark]
                return Placement(self.path, transport, split, tuple(ranks), cables, "; ".join(part for part in parts if part))
        return None

    def sets(self, size: int) -> Iterator[tuple[str, ...]]:
        if size == 1:
            yield from ((name,) for name in sorted(self.macs))
        else:
            yield from cycles(self.graph, size)

    def current(self) -> Placement | None:
        order = self.request.current
        size = len(order)
        if not order or any(name not in self.macs for name in order) or len(set(order)) != size:
            return None
        if size < self.request.min_nodes or size > (self.request.max_nodes or size):
            return None
        if size > 1 and any(order[(i + 1) % size] not in self.graph.get(order[i], {}) for i in range(size)):
            return None
        return self.place([order], "kept where it was")

    def score(self, placement: Placement) -> tuple[object, ...]:
        """Less is better; the module says what and why."""
        macs = [self.macs[name] for name in placement.nodes]
        names = placement.nodes
        hops = zip(names, (*names[1:], names[0]), strict=True) if len(names) > 1 else ()
        speeds = [self.graph[one][other].speed_mbps for one, other in hops]
        used = [rank.memory_bytes * 1000 // max(1, mac.free_bytes) for rank, mac in zip(placement.ranks, macs, strict=True)]
        leftover = sum(mac.free_bytes - rank.memory_bytes for rank, mac in zip(placement.ranks, macs, strict=True))
        return (
            any(mac.in_use for mac in macs),
            -min(speeds, default=0),
            max(used) - min(used),
            leftover,
            placement.nodes,
            placement.model_path,
        )


def _kind(transport: Transport, split: Split, size: int) -> str:
    if transport is Transport.NONE:
        return "one Mac holds the whole model"
    return f"{split} parallelism over a TCP ring of {size} Macs on Thunderbolt cables"


def plan(fleet: Fleet, request: Request) -> Placement | Unplaceable:
    """Where one group goes. The same fleet in any order gives the same answer."""
    macs = {mac.name: mac for mac in sorted(fleet.macs, key=lambda mac: mac.name)}
    lacks = {name: why for name, mac in macs.items() if (why := lack(mac, request)) is not None}
    eligible = {name: mac for name, mac in macs.items() if name not in lacks}
    paths = sorted({m.path for mac in eligible.values() for m in wanted_model(mac, request) if m.complete and m.sized})
    options = []
    for path in paths:
        holders = {
            name: mac
            for name, mac in eligible.items()
            if any(m.path == path and m.complete and m.sized for m in wanted_model(mac, request))
        }
        options.append(_Candidates(fleet, request, path, holders))

    for option in options:
        kept = option.current()
        if kept is not None:
            return kept
    most = min(request.max_nodes or len(eligible), len(eligible))
    for size in range(request.min_nodes, most + 1):
        found = [
            (option.score(placement), placement)
            for option in options
            for names in option.sets(size)
            if (placement := option.place(option.numbered(names), "fewest Macs that fit")) is not None
        ]
        if found:
            return min(found, key=lambda entry: entry[0])[1]
    return _explain(request, macs, lacks, options)


def _needs(option: _Candidates, names: tuple[str, ...], split: Split) -> tuple[int, str]:
    """Bytes that this set lacks and a sentence about it."""
    request = option.request
    model = option.facts[names[0]]
    free = sum(option.macs[name].free_bytes for name in names)
    who = " + ".join(names)
    size = len(names)
    has = f"{'has' if size == 1 else 'have'} {gib(free)} free"
    if split is Split.PIPELINE:
        if len(model.layer_bytes) < size:
            return 1 << 62, f"{who}: the model has {len(model.layer_bytes)} layers, fewer than {size} ranks"
        least = pipeline_bytes(model, request.memory, 0, len(model.layer_bytes))
        extra = (size - 1) * (model.shared_bytes + model.prefill_bytes) * (100 + request.memory.headroom_percent) // 100
        need = least + extra
        return max(1, need - free), f"{who}: Pipeline over {size} Macs needs {gib(need)}, they {has}"
    needs = [tensor_bytes(option.facts[name], request.memory, size, rank) for rank, name in enumerate(names)]
    if any(need is None for need in needs):
        entry = model.tensor_size(size)
        why = entry.refusal if entry is not None and entry.refusal else "its dry run did not try that size"
        return 1 << 62, f"{who}: mlx-lm cannot split the model over {size} ranks: {why}"
    known = [need for need in needs if need is not None]
    short = sum(max(0, need - option.macs[name].free_bytes) for need, name in zip(known, names, strict=True))
    if size == 1:
        return max(1, short), f"{who} has {gib(free)} free, the whole model needs {gib(known[0])}"
    return max(1, short), f"{who}: Tensor over {size} Macs needs {gib(max(known))} on each, they {has} together"


def _near_misses(options: Sequence[_Candidates], request: Request) -> list[NearMiss]:
    misses: list[NearMiss] = []
    for option in options:
        most = min(request.max_nodes or len(option.macs), len(option.macs))
        for size in range(request.min_nodes, most + 1):
            for names in option.sets(size):
                transport = Transport.RING if size > 1 else Transport.NONE
                if not option.same_model(names):
                    message = f"{' + '.join(names)}: {option.path} is not the same on all of them"
                    misses.append(NearMiss(names, transport, Split.NONE, message, 1 << 62))
                    continue
                for split in option.splits(names):
                    short, message = _needs(option, names, split)
                    misses.append(NearMiss(names, transport, split, message, short))
    return sorted(misses, key=lambda miss: (miss.missing_bytes, len(miss.nodes), miss.nodes, miss.split))


def _cable_lack(name: str, option: _Candidates, request: Request) -> str:
    if request.transport in _JACCL:
        return "could run it alone only: groups over JACCL are not planned by this version (transport Ring or Auto)"
    if "ring" not in option.macs[name].backends:
        return "cannot join a ring: its MLX lacks the ring backend"
    if not option.graph.get(name):
        return "has no Thunderbolt cable, with addresses at both ends, to another Mac that could take part"
    return f"is on no ring of {request.min_nodes} Macs that are cabled to one another and have room"


def _explain(
    request: Request, macs: Mapping[str, Mac], lacks: Mapping[str, str], options: Sequence[_Candidates]
) -> Unplaceable:
    if not macs:
        return Unplaceable("NoMacs", "There is no Mac in the cluster: join one with thunderfleet-kubelet join")
    misses = _near_misses(options, request)
    sentences: list[Lack] = [Lack(name, why) for name, why in lacks.items()]
    alone = [miss for miss in reversed(misses) if len(miss.nodes) == 1]
    single = {miss.nodes[0]: miss.message.removeprefix(f"{miss.nodes[0]} ") for miss in alone}
    for option in options:
        for name in option.macs:
            sentences.append(Lack(name, single[name] if name in single else _cable_lack(name, option, request)))
    unique = {entry.node: entry for entry in reversed(sentences)}
    ordered = tuple(unique[name] for name in sorted(unique))
    reason = "NoRoom"
    if not options:
        reason = "TransportUnavailable" if any("cannot run" in why for why in lacks.values()) else "NoMacFits"
    elif request.min_nodes > max(len(option.macs) for option in options):
        reason = "NotEnoughMacs"
    elif request.min_nodes > 1 and not any(len(miss.nodes) > 1 for miss in misses):
        reason = "NotConnected"
    wanted = f"{request.min_nodes} Macs" if request.min_nodes > 1 else "a Mac"
    together = [miss for miss in misses if len(miss.nodes) > 1][:NEAR_MISSES]
    parts = [f"{entry.node} {entry.message}" for entry in ordered] + [miss.message for miss in together]
    return Unplaceable(reason, f"{request.model} finds no place on {wanted}: " + "; ".join(parts), ordered, tuple(misses[:16]))
