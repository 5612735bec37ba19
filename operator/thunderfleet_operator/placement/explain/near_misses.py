"""Why there is no place, in words that tell an owner what to buy, plug or switch on.

For each transport the same search runs once more with the rules loosened: every two Macs count as joined, at a price for
each cable that is missing or cannot be used. The cheapest set is the near miss, and what was loosened is what it lacks. Where
memory is short even then, the bytes that are missing are told.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol

from thunderfleet_operator.placement.eligibility import wanted_model
from thunderfleet_operator.placement.fleet import Fleet, Mac
from thunderfleet_operator.placement.graph.hops import MESH_RANKS, Hop, rdma_hops, rdma_lack, ring_hops, ring_lack
from thunderfleet_operator.placement.memory import Bounds, Needs
from thunderfleet_operator.placement.request import Lack, NearMiss, Request, Unplaceable
from thunderfleet_operator.placement.score import LABELS
from thunderfleet_operator.placement.search.fitting import RDMA, Fitting
from thunderfleet_operator.placement.search.stage import Area, Shortlist, Stage, Work
from thunderfleet_operator.placement.units import gib
from thunderfleet_operator.placement.words import Split, Transport, WantedTransport

POOL = 10
"""Macs among which a near miss is looked for: those with most free memory, and whoever is cabled to the first."""
WORK = 4_000
LISTED = 6
"""Macs named in a message."""
SWITCH_ON, LOOK, PLUG, BUY = 1, 2, 3, 50
"""What it costs an owner to mend: a setting, an address, a cable, memory."""
MENDED = 8
"""Macs that cannot take part, but could if they were mended, among which a near miss is looked for."""


class Holders(Protocol):
    """Macs that could work together, and the model that they hold."""

    @property
    def needs(self) -> Needs: ...
    @property
    def mlx(self) -> tuple[str, str]: ...
    @property
    def macs(self) -> Mapping[str, Mac]: ...


class Searched(Protocol):
    """A search that has found nothing."""

    fleet: Fleet
    request: Request
    work: Work
    lacks: dict[str, str]
    eligible: dict[str, Mac]
    unreached: list[tuple[Transport, tuple[str, ...]]]

    @property
    def universes(self) -> Sequence[Holders]: ...
    def transports(self) -> Sequence[Transport]: ...
    def splits(self, transport: Transport) -> Sequence[Split]: ...
    def near_sizes(self, transport: Transport) -> Iterable[int]: ...


@dataclass(frozen=True, slots=True)
class Gap:
    """What two Macs lack to be joined, or one Mac to take part."""

    cost: int
    text: str


@dataclass(frozen=True, slots=True)
class Miss:
    cost: int
    missing_bytes: int
    near: NearMiss
    why: str
    """The reason's word."""

    @property
    def order(self) -> tuple[object, ...]:
        near = self.near
        return (self.cost, self.missing_bytes, len(near.nodes), near.nodes, near.split)


def names(members: Iterable[str]) -> str:
    """As many as people read."""
    listed = list(members)
    more = f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    return ", ".join(listed[:LISTED]) + more


def gap(fleet: Fleet, one: str, other: str, transport: Transport) -> Gap | None:
    """What this hop lacks; None when nothing."""
    rdma = transport in RDMA
    usable = rdma_hops(fleet, one) if rdma else ring_hops(fleet, one, lan=True)
    if other in usable:
        return None
    pair = f"{one} ↔ {other}"
    cables = sorted((c for c in fleet.links(one) if c.other(one) == other), key=lambda c: (-c.speed_mbps, c.name))
    for cable in cables:
        if cable.connected:
            why = rdma_lack(cable) if rdma else ring_lack(cable)
            return Gap(SWITCH_ON, f"{pair}: {why}")
    if not rdma and not cables and fleet.macs[one].dials is not None:
        return Gap(LOOK, f"{pair}: no Thunderbolt cable, and neither has been seen to reach the other over the LAN")
    return Gap(PLUG, f"{pair}: the cable is unplugged" if cables else f"{pair}: no Thunderbolt cable")


def _effort(mac: Mac, request: Request) -> int:
    """What it costs to mend a Mac that may not take a rank."""
    if mac.name in request.avoid:
        return PLUG
    if not mac.ready or mac.quarantine or not mac.address or not mac.profiled:
        return LOOK
    if any(mac.labels.get(key) != value for key, value in request.selector.items()):
        # Its deployment does not want it: told last, after memory that is short where it may go.
        return BUY + 5
    return SWITCH_ON if any(model.complete and model.sized for model in wanted_model(mac, request)) else PLUG


def _mendable(search: Searched, universe: Holders | None, transport: Transport) -> dict[str, Gap]:
    """Macs that cannot take part over this transport beside those of ``universe``, the least first, and what each lacks: the
    end of a sentence that begins with its name.
    """
    request, found = search.request, dict[str, Gap]()
    backend = "jaccl" if transport in RDMA else "ring"
    for name, mac in search.fleet.macs.items():
        if name in search.lacks:
            found[name] = Gap(_effort(mac, request), search.lacks[name])
        elif universe is not None and name not in universe.macs:
            mlx, mlx_lm = universe.mlx
            if (mac.mlx_version or "", mac.mlx_lm_version or "") != universe.mlx:
                theirs = f"MLX {mac.mlx_version or '?'} with mlx-lm {mac.mlx_lm_version or '?'}"
                found[name] = Gap(PLUG, f"has {theirs}, the others MLX {mlx or '?'} with mlx-lm {mlx_lm or '?'}")
            else:
                found[name] = Gap(PLUG, f"has other files of {request.model} than the others")
        elif transport is not Transport.NONE and backend not in mac.backends:
            found[name] = Gap(PLUG, f"runs an MLX without {backend}")
    macs = search.fleet.macs
    return dict(sorted(found.items(), key=lambda entry: (entry[1].cost, -macs[entry[0]].free_bytes, entry[0])))


def _needs(search: Searched, universe: Holders | None) -> Needs | None:
    """Of the model; where no Mac may take a rank, as any of them knows it."""
    if universe is not None:
        return universe.needs
    known = (model for _, mac in sorted(search.fleet.macs.items()) for model in wanted_model(mac, search.request))
    facts = next((model for model in known if model.complete and model.sized), None)
    return Needs(facts, search.request.memory) if facts is not None else None


def _alone_mended(search: Searched, universe: Holders | None) -> Miss | None:
    """A Mac that would hold the whole model if it could take a rank."""
    needs, macs = _needs(search, universe), search.fleet.macs
    need = needs.bounds(Split.NONE, 1) if needs is not None else None
    for name, lacking in _mendable(search, universe, Transport.NONE).items():
        if isinstance(need, Bounds) and macs[name].free_bytes < need.together:
            continue
        near = NearMiss((name,), Transport.NONE, Split.NONE, f"{LABELS[Transport.NONE]}: {name} {lacking.text}")
        return Miss(lacking.cost, 0, near, "NoRoom")
    return None


def _mended(search: Searched, universe: Holders | None, transport: Transport, able: Sequence[Mac]) -> Miss | None:
    """What a group over this transport would lack if more Macs than the ``able`` ones took part; None when mending Macs
    makes no difference.
    """
    fleet, request, label = search.fleet, search.request, LABELS[transport]
    least, most = max(2, request.min_nodes), request.max_nodes or len(fleet.macs)
    if least > (request.max_nodes or least):
        return None
    if transport is Transport.JACCL:
        most = min(most, MESH_RANKS)
        if least > MESH_RANKS:
            text = f"{label}: has {MESH_RANKS} Macs at most, nodes.min asks for {least}"
            return Miss(BUY + 3, 0, NearMiss((), transport, Split.NONE, text), "TransportUnavailable")
    others = _mendable(search, universe, transport)
    names_able = {mac.name for mac in able}
    taken = [name for name in others if name not in names_able][: max(MENDED, least - len(able))]
    members = [*able, *(fleet.macs[name] for name in taken)]
    ranked = sorted(members, key=lambda mac: (-mac.free_bytes, mac.name))
    missing = least - len(members)
    if missing > 0:
        there = f"there {'is' if len(members) == 1 else 'are'} {len(members)}"
        lacking = [f"takes {least} Macs, {there}: join {missing} more to the cluster (thunderfleet-kubelet join)"]
        lacking += _together(Lack(name, others[name].text) for name in taken)
        text = f"{label}: {_some(lacking)}"
        return Miss(BUY * missing, 0, NearMiss(tuple(sorted(m.name for m in members)), transport, Split.NONE, text), "NoRoom")
    needs = _needs(search, universe)
    short: list[Miss] = []
    for size in range(least, min(most, len(members)) + 1) if needs is not None and taken else ():
        for split in search.splits(transport):
            need = needs.bounds(split, size) if needs is not None else ""
            if isinstance(need, str) or needs is None:
                continue
            if sum(mac.free_bytes for mac in ranked[:size]) < need.together or ranked[size - 1].free_bytes < need.least:
                what = f"the {size} with most, could all take part, have"
                short.append(_memory(ranked, need, transport, split, size, what))
                continue
            loose = _loosened(fleet, members, needs, transport, split, size, need, others)
            if loose is None:
                continue
            nodes, gaps = loose
            lacking = _together(Lack(name, others[name].text) for name in nodes if name in others)
            text = f"{label} of {names(nodes)}: {_some([*lacking, *(entry.text for entry in gaps)])}"
            cost = sum(entry.cost for entry in gaps) + sum(others[name].cost for name in nodes if name in others)
            return Miss(cost, 0, NearMiss(nodes, transport, split, text), "NoRoom")
    if len(able) >= least:
        return None
    if short:
        return min(short, key=lambda miss: miss.order)
    wanted = taken[: least - len(able)]
    nodes = tuple(sorted([*names_able, *wanted])[:16])
    text = f"{label} of {names(nodes)}: {_some(_together(Lack(name, others[name].text) for name in wanted))}"
    return Miss(sum(others[name].cost for name in wanted), 0, NearMiss(nodes, transport, Split.NONE, text), "NoRoom")


def _some(texts: Sequence[str]) -> str:
    """As many as people read."""
    return "; ".join(texts[:4]) + (f"; and {len(texts) - 4} more" if len(texts) > 4 else "")


def _pool(fleet: Fleet, members: Sequence[Mac], lacking: Container[str]) -> list[Mac]:
    """A few Macs that a near miss is likely among. Those ``lacking`` something count as in use."""
    ranked = sorted(members, key=lambda mac: (-mac.free_bytes, mac.name))
    pool = {mac.name: mac for mac in ranked[: POOL // 2]}
    by_name = {mac.name: mac for mac in members}
    for head in ranked[: POOL // 2]:
        for cable in sorted(fleet.links(head.name), key=lambda entry: entry.name):
            peer = cable.other(head.name)
            if peer in by_name and len(pool) < POOL:
                pool[peer] = by_name[peer]
    for mac in ranked:
        if len(pool) >= POOL:
            break
        pool[mac.name] = mac
    return [replace(mac, in_use=mac.name in lacking, dials=None) for mac in pool.values()]


def _loosened(
    fleet: Fleet,
    members: Sequence[Mac],
    needs: Needs,
    transport: Transport,
    split: Split,
    size: int,
    need: Bounds,
    lacking: Container[str] = (),
) -> tuple[tuple[str, ...], list[Gap]] | None:
    """The cheapest set that would do, and what its hops lack; as few of those that are ``lacking`` themselves as can be."""
    pool = _pool(fleet, members, lacking)
    gaps: dict[tuple[str, str], Gap | None] = {}

    def hops(node: str) -> dict[str, Hop]:
        found = {}
        for mac in pool:
            if mac.name != node:
                key = (node, mac.name)
                if key not in gaps:
                    gaps[key] = gap(fleet, *key, transport)
                missing = gaps[key]
                found[mac.name] = Hop(0, missing.cost if missing else 0)
        return found

    area = Area(pool, hops, 0)
    if not area.may_hold(size, need):
        return None
    shortlist, work = Shortlist(1), Work(WORK)
    # The ring's rules, without facts of who dialled whom: memory alone decides.
    fitting = Fitting(Fleet(pool), needs, Transport.RING, split, size, need, shortlist, work)
    stage = Stage(area, size, need, shortlist, work, fitting.evaluate)
    if transport is Transport.JACCL:
        stage.cliques()
    else:
        stage.rings()
    if not shortlist.entries:
        return None
    order = [area.macs[i].name for i in shortlist.entries[0].order]
    pairs = list(combinations(order, 2))
    if transport is not Transport.JACCL:
        pairs = [(order[i], order[(i + 1) % size]) for i in range(size)]
    found = [entry for one, other in pairs if (entry := gap(fleet, one, other, transport)) is not None]
    return tuple(order), list({entry.text: entry for entry in found}.values())


def _free(mac: Mac) -> str:
    """With what there is at all, where others have some of it: then one may wait instead of buying."""
    of = f" of {gib(mac.allocatable_bytes)}" if mac.allocatable_bytes > mac.free_bytes else ""
    return f"{gib(mac.free_bytes)}{of} free"


def _alone(members: Sequence[Mac], need: Bounds | str) -> Miss | None:
    if not members:
        return None
    best = min(members, key=lambda mac: (-mac.free_bytes, mac.name))
    if isinstance(need, str):
        return Miss(BUY + 1, 0, NearMiss((best.name,), Transport.NONE, Split.NONE, f"{best.name}: {need}"), "NoRoom")
    short = max(0, need.together - best.free_bytes)
    text = f"{best.name} has {_free(best)}, the whole model needs {gib(need.together)}"
    return Miss(BUY, short, NearMiss((best.name,), Transport.NONE, Split.NONE, text, short), "NoRoom")


def _memory(members: Sequence[Mac], need: Bounds, transport: Transport, split: Split, size: int, what: str) -> Miss:
    """Not even the biggest Macs have room. ``members``: from the biggest."""
    taken = list(members[:size])
    total = sum(mac.free_bytes for mac in taken)
    weakest = min(mac.free_bytes for mac in taken)
    short = max(need.together - total, need.least - weakest, 1)
    nodes = tuple(sorted(mac.name for mac in taken))
    wants = f"{split} over {size} Macs needs {gib(need.together)}"
    if need.together <= total:
        wants += f", {gib(need.least)} on each at least"
    text = f"{wants}; {what} {gib(total)} free: {names(nodes)}"
    return Miss(BUY, short, NearMiss(nodes, transport, split, text, short), "NoRoom")


def _transport(search: Searched, universe: Holders, transport: Transport) -> list[Miss]:
    """What keeps these Macs from a group over this transport, the cheapest to mend first."""
    fleet, request, everybody = search.fleet, search.request, list(universe.macs.values())
    backend = "jaccl" if transport in RDMA else "ring"
    able = [mac for mac in everybody if backend in mac.backends]
    if transport is Transport.RING:
        able = [mac for mac in able if mac.name not in request.no_ring_ports]
    unable = sorted(mac.name for mac in everybody if backend not in mac.backends)
    wanted = list(search.near_sizes(transport))
    if len(able) < max(2, request.min_nodes):
        mended = _mended(search, universe, transport, able)
        if not unable or not wanted:
            return [mended] if mended is not None else []
        what = "RDMA" if transport in RDMA else LABELS[transport]
        text = f"{what}: the MLX of {names(unable)} lacks {backend}"
        return [Miss(BUY + 2, 0, NearMiss(tuple(unable[:16]), transport, Split.NONE, text), "TransportUnavailable")]
    ranked = sorted(able, key=lambda mac: (-mac.free_bytes, mac.name))
    misses: list[Miss] = []
    if transport is Transport.RING and request.no_ring_ports:
        told = [f"{name} {request.no_ring_ports[name]}" for name in sorted(request.no_ring_ports)[:LISTED]]
        near = NearMiss(
            tuple(sorted(request.no_ring_ports)[:16]), transport, Split.NONE, f"{LABELS[transport]}: {'; '.join(told)}"
        )
        misses.append(Miss(BUY - 1, 0, near, "NoPortsLeft"))
    refused: dict[str, Miss] = {}
    for size in wanted:
        if size > len(able):
            break
        for split in search.splits(transport):
            need = universe.needs.bounds(split, size)
            if isinstance(need, str):
                near = NearMiss((), transport, split, f"{split} over {size} Macs: {need}")
                refused.setdefault(need, Miss(BUY + 1, size, near, "NoRoom"))
                continue
            total = sum(mac.free_bytes for mac in ranked[:size])
            if total < need.together or ranked[size - 1].free_bytes < need.least:
                misses.append(_memory(ranked, need, transport, split, size, f"the {size} with most have"))
                continue
            loose = _loosened(fleet, able, universe.needs, transport, split, size, need)
            if loose is None:
                misses.append(_memory(ranked, need, transport, split, size, "no division fits Macs with together"))
                continue
            nodes, gaps = loose
            if gaps:
                cost = sum(entry.cost for entry in gaps)
                text = f"{LABELS[transport]} of {names(nodes)}: {_some([entry.text for entry in gaps])}"
                misses.append(Miss(cost, 0, NearMiss(nodes, transport, split, text), "NotConnected"))
            # Without facts of dials, cables alone join.
            apart = transport in RDMA or all(mac.dials is None for mac in able)
            for joined in _islands(fleet, able) if apart else ():
                if len(joined) >= size and sum(mac.free_bytes for mac in joined[:size]) < need.together:
                    what = "the largest connected set has"
                    misses.append(_memory(joined, need, transport, split, size, what))
                    break
        if len(misses) > 12:
            break
    if all(miss.cost >= BUY for miss in misses):
        # Perhaps nothing has to be bought.
        mended = _mended(search, universe, transport, able)
        misses += [mended] if mended is not None else []
    return sorted([*misses, *refused.values()], key=lambda miss: miss.order)


def _islands(fleet: Fleet, able: Sequence[Mac]) -> list[list[Mac]]:
    """Those that cables join, the sets with most free memory first, in each the Macs with most."""
    table = {mac.name: mac for mac in able}
    joined = [[table[name] for name in island if name in table] for island in fleet.islands]
    ranked = [sorted(island, key=lambda mac: (-mac.free_bytes, mac.name)) for island in joined if island]
    return sorted(ranked, key=lambda island: (-sum(mac.free_bytes for mac in island), island[0].name))


def explain(search: Searched) -> Unplaceable:
    """What the search that found nothing has to say."""
    fleet, request = search.fleet, search.request
    if not fleet.macs:
        return Unplaceable("NoMacs", "There is no Mac in the cluster: join one with thunderfleet-kubelet join")
    by_transport: list[list[Miss]] = []
    for transport, name_sets in _unreached(search.unreached).items():
        text = (
            f"{LABELS[transport]} of {names(name_sets[0])}: no rank that all others have dialled yet; waiting for their agents"
        )
        near = NearMiss(name_sets[0], transport, Split.NONE, text)
        by_transport.append([Miss(0, 0, near, "NotYetObserved")])
    for transport in search.transports():
        found: list[Miss] = []
        for universe in search.universes or (None,):
            if transport is not Transport.NONE:
                mended = _mended(search, None, transport, ()) if universe is None else None
                found += [mended] if mended else _transport(search, universe, transport) if universe is not None else []
            elif request.min_nodes == 1:
                whole = universe.needs.bounds(Split.NONE, 1) if universe is not None else ""
                alone = _alone(list(universe.macs.values()), whole) if universe is not None else None
                found += [miss for miss in (alone, _alone_mended(search, universe)) if miss is not None]
        if found:
            by_transport.append(sorted(found, key=lambda miss: miss.order))
    return _tell(search, by_transport)


def _unreached(sets: Iterable[tuple[Transport, tuple[str, ...]]]) -> dict[Transport, list[tuple[str, ...]]]:
    found: dict[Transport, set[tuple[str, ...]]] = {}
    for transport, members in sets:
        found.setdefault(transport, set()).add(members)
    return {transport: sorted(members, key=lambda entry: (len(entry), entry)) for transport, members in found.items()}


def _reason(search: Searched, best: Sequence[Miss]) -> str:
    request = search.request
    if not search.universes:
        return "TransportUnavailable" if any("cannot run" in why for why in search.lacks.values()) else "NoMacFits"
    if request.min_nodes > max(len(universe.macs) for universe in search.universes):
        return "NotEnoughMacs"
    return best[0].why if best else "NoRoom"


def _mac_lack(search: Searched, mac: Mac) -> str:
    """Why a Mac that may take a rank does not."""
    request = search.request
    if request.min_nodes == 1:
        needs = [universe.needs.bounds(Split.NONE, 1) for universe in search.universes if mac.name in universe.macs]
        known = [need for need in needs if isinstance(need, Bounds)]
        if known:
            return f"has {_free(mac)}, the whole model needs {gib(min(n.together for n in known))}"
        return str(needs[0]) if needs else "has no figures of the model"
    backend = "jaccl" if request.transport in (WantedTransport.JACCL, WantedTransport.JACCL_RING) else "ring"
    if backend not in mac.backends:
        return f"cannot join a group: its MLX lacks {backend}"
    if not any(cable.connected for cable in search.fleet.links(mac.name)):
        over = "" if backend == "jaccl" else ", and has not been seen to reach one over the LAN"
        return f"has no Thunderbolt cable, with addresses at both ends, to another Mac that could take part{over}"
    return f"is in no set of {request.min_nodes} Macs that are joined as the transport needs it and have room"


def _together(lacks: Iterable[Lack]) -> list[str]:
    """A sentence a lack: what several Macs lack is said once."""
    who: dict[str, list[str]] = {}
    for entry in lacks:
        who.setdefault(entry.message, []).append(entry.node)
    return [f"{'each of ' if len(nodes) > 1 else ''}{names(nodes)} {message}" for message, nodes in who.items()]


def _tells(text: str, entry: Lack) -> bool:
    """Whether this text says what this Mac lacks, of it alone or of several together."""
    before, found, _ = text.partition(f" {entry.message}")
    who = before.rsplit("; ", 1)[-1].rsplit(": ", 1)[-1]
    return bool(found) and entry.node in who.removeprefix("each of ").split(", ")


def _by_transports(best: Sequence[Miss]) -> list[str]:
    """Their messages; what several transports lack is said once."""
    labels: dict[str, list[str]] = {}
    for miss in best:
        label = LABELS[miss.near.transport]
        message = miss.near.message
        text = message.removeprefix(label)
        labels.setdefault(text, []).extend([label] if text != message else [])
    return [", ".join(which) + text for text, which in labels.items()]


def _tell(search: Searched, by_transport: Sequence[Sequence[Miss]]) -> Unplaceable:
    request = search.request
    best = sorted((misses[0] for misses in by_transport), key=lambda miss: miss.order)
    reason = _reason(search, best)
    lacks = [Lack(name, why) for name, why in search.lacks.items()]
    ports = request.no_ring_ports
    lacks += [
        Lack(name, _mac_lack(search, mac) + (f", and {ports[name]}" if name in ports else ""))
        for name, mac in search.eligible.items()
    ]
    ordered = tuple(sorted(lacks, key=lambda entry: entry.node))
    wanted = f"{request.min_nodes} Macs" if request.min_nodes > 1 else "a Mac"
    parts = _by_transports(best)
    ineligible = [entry for entry in ordered if entry.node in search.lacks]
    if len(ordered) <= LISTED:
        ineligible = list(ordered)
    told_already = "; ".join(parts)
    together = _together(entry for entry in ineligible if not _tells(told_already, entry))
    parts += together[:LISTED]
    if len(together) > LISTED:
        parts.append(f"and more Macs with {len(together) - LISTED} other lacks")
    if search.work.cut:
        parts.append("the search was ended at its limit")
    rest = sorted((miss for misses in by_transport for miss in misses[1:]), key=lambda miss: miss.order)
    told = tuple(miss.near for miss in [*best, *rest][:16])
    message = f"{request.model} finds no place on {wanted}: " + "; ".join(dict.fromkeys(parts))
    return Unplaceable(reason, message, ordered, told, proven=not search.work.cut)
