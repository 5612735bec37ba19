"""Figures of the planner, which needs no cluster: against listing every cycle of the fleet, and on fleets that grow.

A rack is eight Macs with a cable between every two; a LAN joins all, and each Mac has dialled those of its own rack and one
of the next. ``python -m tests.bench.planner.placement`` measures these alone.
"""

import gc
import itertools
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from thunderfleet_crds.vocabulary import PlacementPolicy, Transport
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.proofs import TRUSTING
from thunderfleet_operator.placement import (
    Cable,
    Dials,
    End,
    Fleet,
    KVLayer,
    Mac,
    MemoryRequest,
    ModelFacts,
    Placement,
    Request,
    Taint,
    TensorFacts,
    better,
    plan,
)
from thunderfleet_operator.watch.cache import LINKS, NODEPROFILES, NODES, PODS, Cache

from tests.bench.figures import Bound, Figure, table
from tests.bench.planner import shapes

GIB = 2**30
RACK = 8
SIZES = (100, 300, 1_000, 3_000, 10_000)
PATH = "/models/large"
NO_KV = MemoryRequest(1024, 1, 0, 10)
Say = Callable[[str], None]


def large_model(total: int) -> ModelFacts:
    """61 layers; splits by tensor over 2, 4 and 8."""
    sizes = tuple(TensorFacts(size, (total // size,) * size) for size in (1, 2, 4, 8))
    return ModelFacts(PATH, "org/large", bytes=total, tensor=sizes, layer_bytes=(total // 61,) * 61, shared_bytes=GIB)


def address(i: int) -> str:
    return f"10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}"


def cliques(count: int, size: int, free: int, model: ModelFacts, chained: bool = False) -> Fleet:
    """Equal Macs in groups of ``size``, with cables between all Macs of a group and none between groups.

    ``chained``: each has also reached the first Mac of the next group.
    """
    names = [f"mac-{i:05d}" for i in range(count)]
    macs, cables = [], []
    for i, name in enumerate(names):
        first = i // size * size
        peers = [j for j in range(first, min(first + size, count)) if j != i]
        reached = [*peers, (first + size) % count] if chained else peers
        dials = Dials.of((names[j], address(j)) for j in reached)
        backends = frozenset({"ring", "jaccl"})
        macs.append(Mac(name, address(i), free, free, models=(model,), backends=backends, dials=dials))
        for j in (j for j in peers if j > i):
            ends = (
                End(name, f"169.254.{j % 250}.{i % 250}", f"to-{j}"),
                End(names[j], f"169.254.{i % 250}.{j % 250}", f"to-{i}"),
            )
            cables.append(Cable(f"{name}--{names[j]}", *ends, 80_000, rdma_problem=None))
    return Fleet(macs, cables)


def racks(count: int, model: ModelFacts, backends: frozenset[str] = frozenset({"ring", "jaccl"})) -> Fleet:
    """Macs of 96, 192 and 512 GB in turn, rack by rack."""
    names = [f"mac-{i:05d}" for i in range(count)]
    macs, cables = [], []
    for i, name in enumerate(names):
        rack = i // RACK * RACK
        peers = [j for j in (*range(rack, min(rack + RACK, count)), (rack + RACK) % count) if j != i]
        free = (72, 144, 384)[i // RACK % 3] * GIB
        dials = Dials.of((names[j], address(j)) for j in peers)
        macs.append(Mac(name, address(i), free, free, models=(model,), backends=backends, dials=dials))
        for j in range(i + 1, min(rack + RACK, count)):
            cables.append(
                Cable(
                    f"{name}.tb{j - rack}--{names[j]}.tb{i - rack}",
                    End(name, f"169.254.{j % 250}.{i % 250}", f"rdma_en{j - rack + 2}"),
                    End(names[j], f"169.254.{i % 250}.{j % 250}", f"rdma_en{i - rack + 2}"),
                    80_000,
                    rdma_problem=None,
                )
            )
    return Fleet(macs, cables)


def switch(count: int, model: ModelFacts, free: Callable[[int], int]) -> Fleet:
    """Macs on one switch that have all dialled one another, without any cable."""
    names = [f"mac-{i:02d}" for i in range(count)]
    return Fleet(
        Mac(
            name,
            address(i),
            free(i),
            models=(model,),
            dials=Dials.of((names[j], address(j)) for j in range(count) if j != i),
        )
        for i, name in enumerate(names)
    )


def meshed(count: int, model: ModelFacts, free: int) -> Fleet:
    """A cable between every two Macs; the number of ports is ignored."""
    names = [f"mac-{i:02d}" for i in range(count)]
    macs = [Mac(n, address(i), free, models=(model,), backends=frozenset({"ring", "jaccl"})) for i, n in enumerate(names)]
    cables = (
        Cable(f"{a}--{b}", End(a, "1", f"to-{b}"), End(b, "2", f"to-{a}"), 80_000, rdma_problem=None)
        for a, b in itertools.combinations(names, 2)
    )
    return Fleet(macs, cables)


def _seconds(work: Callable[[], Any], repeats: int) -> tuple[float, ...]:
    """Seconds of processor time, which do not depend on the machine's load; neither side waits."""
    found = []
    for _ in range(repeats):
        gc.collect()
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return tuple(found)


def _ms(samples: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sample * 1000 for sample in samples)


def _anew(fleet: Fleet) -> Fleet:
    """The same fleet without cached indexes, because callers pay for them too."""
    return Fleet(fleet.macs.values(), fleet.cables.values())


def against_listing(repeats: int) -> list[Figure]:
    """Ten Macs on one switch, and ten joined by cables: the planner, and a listing of all simple cycles of the same graph."""
    import rustworkx

    model = large_model(400 * GIB)
    lan, cabled = switch(10, model, lambda i: 96 * GIB), meshed(10, model, 96 * GIB)
    graph = rustworkx.PyDiGraph()
    nodes = [graph.add_node(name) for name in lan.macs]
    for one, other in itertools.permutations(nodes, 2):
        graph.add_edge(one, other, None)
    cycles = 0

    def listing() -> None:
        nonlocal cycles
        cycles = sum(1 for _ in rustworkx.simple_cycles(graph))

    figures = []
    for kind, fleet in (("on one switch", lan), ("all cabled", cabled)):
        request = Request(path=PATH, memory=NO_KV, ring_without_relay=True)
        if not isinstance(plan(fleet, request), Placement):
            raise AssertionError("ten Macs have room for the model")
        # In alternation, and the minimum of many runs: load slows both sides.
        theirs = _ms(_seconds(listing, repeats))
        ours = _ms(_seconds(lambda fleet=fleet, request=request: plan(_anew(fleet), request), 30 * repeats))  # type: ignore[misc]
        note = f"10 Macs {kind}, the fleet's indexes made too; {cycles} cycles listed; least of {len(ours)} and {len(theirs)}"
        figures.append(
            Figure(
                f"placement 10 {kind}", "ms", (min(ours),), (min(theirs),), "rustworkx simple_cycles", Bound("<=", 0.001), note
            )
        )
    return figures


def one_switch(repeats: int) -> list[Figure]:
    figures = []
    layers = large_model(700 * GIB)
    uneven = replace(layers, layer_bytes=tuple(size * (9 + i % 3) // 10 for i, size in enumerate(layers.layer_bytes)))
    kinds: dict[str, tuple[ModelFacts, Callable[[int], int]]] = {
        "equal": (layers, lambda i: 96 * GIB),
        "unlike": (layers, lambda i: (64 + (i * 7) % 16 * 8) * GIB),
        "unlike, uneven layers": (uneven, lambda i: (64 + (i * 7) % 16 * 8) * GIB),
        "unlike, measured": (layers, lambda i: (64 + (i * 7) % 16 * 8) * GIB),
    }
    for kind, (model, free) in kinds.items():
        fleet = switch(16, model, free)
        if kind.endswith("measured"):
            fleet = _with_rates(fleet)
        for bare in (False, True):
            request = Request(path=PATH, memory=NO_KV, ring_without_relay=bare)
            found = plan(fleet, request)
            if not isinstance(found, Placement):
                raise AssertionError("sixteen Macs have room for the model")
            proven = "proven best" if found.proven else "not proven best"
            note = f"16 {kind} Macs on one switch, {'bare' if bare else 'relayed'}; {len(found.ranks)} ranks, {proven}"
            samples = _ms(_seconds(lambda fleet=fleet, request=request: plan(_anew(fleet), request), 3 * repeats))  # type: ignore[misc]
            name = f"placement 16 {kind}{', bare' if bare else ''}"
            figures.append(Figure(name, "ms", samples, bound=Bound("<=", 20), note=note))
    return figures


def _with_rates(fleet: Fleet) -> Fleet:
    """Every dial and every Mac's memory have been measured, with different results."""
    macs = []
    for i, mac in enumerate(fleet.macs.values()):
        assert mac.dials is not None
        pairs = list(zip(mac.dials.nodes, mac.dials.addresses, strict=True))
        rates = {pair: 700 + (i * 37 + j * 61) % 250 for j, pair in enumerate(pairs)}
        macs.append(replace(mac, dials=Dials.of(pairs, rates), memory_bandwidth=(400_000, 546_000, 800_000)[i % 3]))
    return Fleet(macs)


def growing(repeats: int, say: Say) -> list[Figure]:
    """A place for a model of 900 GiB on racks, over RDMA; over a ring that may cross the LAN; and none to be found."""
    figures = []
    bounds = {1_000: Bound("<=", 100), 10_000: Bound("<=", 1000)}
    requests = {
        "mesh": (900, Request(path=PATH, memory=NO_KV)),
        "ring+LAN": (900, Request(path=PATH, memory=NO_KV, transport=Transport.RING, ring_without_relay=True)),
        "no place": (90_000, Request(path=PATH, memory=NO_KV)),
    }
    for size in SIZES:
        for kind, (gibs, request) in requests.items():
            fleet = racks(size, large_model(gibs * GIB))
            found = plan(fleet, request)
            what = f"{len(found.ranks)} ranks over {found.transport}" if isinstance(found, Placement) else "none found"
            samples = _ms(_seconds(lambda fleet=fleet, request=request: plan(fleet, request), repeats))  # type: ignore[misc]
            note = f"{size} Macs in racks of {RACK}; {what}{'' if found.proven else ', not proven'}"
            figures.append(Figure(f"placement {size} {kind}", "ms", samples, bound=bounds.get(size), note=note))
            say(f"placement of {size} Macs, {kind}: {figures[-1].value:.1f} ms")
    return figures


def full(repeats: int) -> list[Figure]:
    """Macs in small groups, none of which has room, and no Mac must be compared with all others.

    ``chained``: every group has reached a Mac of the next, so that a ring over many groups is possible.
    """
    figures = []
    kinds = itertools.product(((4, 5, 30), (7, 100, 900)), ((1_000, False), (10_000, False), (10_000, True)))
    for (size, free, total), (count, chained) in kinds:
        fleet = cliques(count, size, free * GIB, large_model(total * GIB), chained=chained)
        request = Request(path=PATH, memory=NO_KV, policy=PlacementPolicy.FEWEST)
        found = plan(fleet, request)
        # Where they are chained, the search of some sizes ends at its step limit.
        if isinstance(found, Placement) or not (found.proven or chained):
            raise AssertionError("no group has room, and that is proven")
        samples = _ms(_seconds(lambda fleet=fleet, request=request: plan(_anew(fleet), request), repeats))  # type: ignore[misc]
        proven = "none found" if found.proven else "none found, not proven"
        note = f"{count} Macs in cliques of {size} with {free} GiB free each, a model of {total} GiB; {proven}"
        bound = Bound("<=", 1000 if count == 1_000 else 5000)
        name = f"placement {count} full, {'chained ' if chained else ''}cliques of {size}"
        figures.append(Figure(name, "ms", samples, bound=bound, note=note))
    return figures


def _sharing(count: int, model: ModelFacts) -> Fleet:
    """Meshes of six Macs, of which the last three are also the first three of the next mesh."""
    macs = list(cliques(count, 1, GIB, model).macs.values())
    macs = [replace(mac, free_bytes=(64 + i * 7 % 64) * GIB, chip="Apple M3 Ultra", gpu_cores=80) for i, mac in enumerate(macs)]
    pairs = {pair for first in range(0, count - 5, 3) for pair in itertools.combinations(range(first, first + 6), 2)}
    cables = (
        Cable(
            f"{macs[i].name}--{macs[j].name}",
            End(macs[i].name, f"169.254.{j % 250}.{i % 250}", f"to-{j}"),
            End(macs[j].name, f"169.254.{i % 250}.{j % 250}", f"to-{i}"),
            80_000,
            rdma_problem=None,
        )
        for i, j in sorted(pairs)
    )
    return Fleet([replace(mac, dials=None) for mac in macs], cables)


def _in_folders(count: int, model: ModelFacts) -> Fleet:
    """Meshes of four Macs with the model in a folder that no other mesh has; every third has no copy."""
    fleet = cliques(count, 4, 96 * GIB, model)
    members = []
    for i, mac in enumerate(fleet.macs.values()):
        copies = (replace(model, path=f"/folder-{i // 4}"),) if i // 4 % 3 else ()
        members.append(replace(mac, models=copies, chip=("Apple M3 Ultra", "Apple M4 Pro")[i % 2]))
    return Fleet(members, fleet.cables.values())


def unusual(repeats: int, say: Say) -> list[Figure]:
    """10,000 Macs in shapes that leave a search the most to look at; where it ends at its limit of steps, it reports this."""
    uneven = large_model(900 * GIB)
    layers = tuple(size * (50 + i * 37 % 100) // 100 for i, size in enumerate(uneven.layer_bytes))
    uneven = replace(uneven, layer_bytes=layers, active_bytes=sum(layers), bits=4)
    cached = replace(large_model(300 * GIB), active_bytes=300 * GIB, bits=4, kv=tuple(KVLayer(0, 4096) for _ in range(61)))
    kinds = {
        "meshes that share Macs": (_sharing(10_000, uneven), Request(path=PATH, memory=NO_KV, policy=PlacementPolicy.FEWEST)),
        "files in some folders": (
            _in_folders(10_000, cached),
            Request(repository="org/large", memory=NO_KV, policy=PlacementPolicy.FEWEST),
        ),
    }
    figures = []
    for kind, (fleet, request) in kinds.items():
        found = plan(fleet, request)
        what = f"{len(found.ranks)} ranks" if isinstance(found, Placement) else "none found"
        samples = _seconds(lambda fleet=fleet, request=request: plan(_anew(fleet), request), repeats)  # type: ignore[misc]
        note = f"10000 Macs; {what}{'' if found.proven else ', not proven'}"
        figures.append(Figure(f"placement 10000 {kind}", "s", samples, bound=Bound("<=", 5), note=note))
        say(f"placement of 10000 Macs, {kind}: {figures[-1].value:.1f} s")
    return figures


def hard(repeats: int) -> list[Figure]:
    """64 equal Macs, all joined: layers that fit in no order of seven ranks, so that the search of those ends at its limit."""
    figures = []
    # With eight ranks each takes one layer: a placement exists there, after seven have failed.
    for kind, layers, most in (("none found", (7, 7, 7, 7, 7, 6, 6, 6), 7), ("best found", (7, 7, 7, 7, 7, 6, 6, 6), 8)):
        model = ModelFacts(PATH, bytes=53, tensor=(TensorFacts(1, (53,)),), layer_bytes=layers)
        fleet = meshed(64, model, 8)
        request = Request(path=PATH, memory=MemoryRequest(1, 1, 0, 0), max_nodes=most)
        found = plan(fleet, request)
        if found.proven or isinstance(found, Placement) != (kind == "best found"):
            raise AssertionError(f"this was meant to be too hard, with {kind}")
        samples = _seconds(lambda fleet=fleet, request=request: plan(fleet, request), repeats)  # type: ignore[misc]
        note = f"64 equal Macs, all joined; {kind} at the limit of steps, and says that it is not proven"
        figures.append(Figure(f"placement hard, {kind}", "s", samples, bound=Bound("<=", 5), note=note))
    return figures


def unlike(count: int) -> Iterator[tuple[str, Fleet, Request]]:
    """Fleets in which nothing has room, with much to explain, and what to ask."""
    model = large_model(9_000 * GIB)
    fleet = racks(count, model)
    asked = Request(repository="org/large", memory=NO_KV, policy=PlacementPolicy.FEWEST)
    changes: tuple[dict[str, Any], ...] = (
        {"schedulable": False},
        {"taints": (Taint("dedicated", "x"),)},
        {"models": ()},
        {"mlx_version": "9"},
        {"ready": False},
        {},
        {},
    )
    members = list(fleet.macs.values())
    broken = [replace(mac, **changes[i % len(changes)]) for i, mac in enumerate(members)]
    versions = [replace(mac, mlx_version=str(i % 20)) for i, mac in enumerate(members)]
    folders = [replace(mac, models=(replace(model, path=f"/{mac.name}"),)) for mac in members]
    yield "full", fleet, asked
    yield "each lacks something", Fleet(broken, fleet.cables.values()), asked
    yield "20 versions of MLX", Fleet(versions, fleet.cables.values()), asked
    yield "a folder for each Mac", Fleet(folders, fleet.cables.values()), asked


def advice(repeats: int, say: Say) -> list[Figure]:
    """1,000 Macs: why nothing has room, and whether a running group has a better place, beside a plan that succeeds."""
    placed, request = racks(1_000, large_model(900 * GIB)), Request(path=PATH, memory=NO_KV, policy=PlacementPolicy.FEWEST)
    found = plan(placed, request)
    if not isinstance(found, Placement):
        raise AssertionError("a rack of the largest Macs has room")
    running = replace(request, current=found.nodes)
    kinds: list[tuple[str, Callable[[], object], str, int]] = [
        ("a better place", lambda: better(_anew(placed), running, found.transport), "for a group that runs", 2)
    ]
    for kind, fleet, asked in unlike(1_000):
        why = plan(fleet, asked)
        if isinstance(why, Placement) or not why.near_misses:
            raise AssertionError(f"nothing has room, and why is explained: {kind}")
        text = f"why there is none, with {len(why.near_misses)} near misses"
        kinds.append((kind, lambda fleet=fleet, asked=asked: plan(_anew(fleet), asked), text, 15))  # type: ignore[misc]
    figures = []
    for kind, work, text, most in kinds:
        # In alternation: load slows both sides.
        samples = [(_seconds(work, 1)[0], _seconds(lambda: plan(_anew(placed), request), 1)[0]) for _ in range(repeats)]
        ours, theirs = (_ms(tuple(side)) for side in zip(*samples, strict=True))
        name, note = f"placement advice 1000, {kind}", f"1000 Macs in racks of {RACK}; {text}"
        figures.append(Figure(name, "ms", ours, theirs, "a plan that succeeds", Bound("<=", most), note))
        say(f"{name}: {figures[-1].value:.0f} ms")
    return figures


# --- the snapshot ---


def objects(count: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Nodes, profiles and links of ``count`` Macs in racks, as the API server has them."""
    fleet = racks(count, large_model(900 * GIB))
    model = {
        "path": PATH,
        "repository": "org/large",
        "bytes": 900 * GIB,
        "complete": True,
        "layers": 61,
        "sizes": [{"worldSize": w, "tensorBytesPerRank": [900 * GIB // w] * w} for w in (1, 2, 4, 8)],
        "pipeline": {"layerBytes": [900 * GIB // 61] * 61, "sharedBytes": GIB},
        "kv": [{"bytesPerToken": 4096, "tensorSplit": True}] * 61,
        "sizedBy": "MLX",
    }
    for number, mac in enumerate(fleet.macs.values(), 1):
        assert mac.address is not None and mac.dials is not None
        meta = {"name": mac.name, "uid": f"uid-{mac.name}", "resourceVersion": str(number)}
        labels = {"kubernetes.io/os": "darwin", "kubernetes.io/hostname": mac.name}
        conditions = [{"type": "Ready", "status": "True"}]
        addresses = [{"type": "InternalIP", "address": mac.address}]
        status = {"allocatable": {"memory": str(mac.free_bytes)}, "addresses": addresses, "conditions": conditions}
        yield NODES, {"metadata": {**meta, "labels": labels}, "spec": {}, "status": status}
        dials = [
            {"node": node, "address": at, "state": "Reachable", "since": "2026-01-01T00:00:00Z"}
            for node, at in zip(mac.dials.nodes, mac.dials.addresses, strict=True)
        ]
        en0 = {"address": mac.address, "prefixLength": 8, "class": "Private"}
        profile = {
            "runtime": {"mlxVersion": "0.32.4", "mlxLmVersion": "0.32.2", "backends": ["ring", "jaccl"]},
            "network": {"interfaces": [{"name": "en0", "kind": "Ethernet", "addresses": [en0]}]},
            "reachability": dials,
            "models": [model],
        }
        yield NODEPROFILES, {"metadata": dict(meta), "status": profile}
    usable = {"type": "RDMAUsable", "status": "True", "reason": "Usable", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for number, cable in enumerate(fleet.cables.values(), 1):
        spec = {
            side: {"node": part.rpartition(".tb")[0], "port": int(part.rpartition(".tb")[2])}
            for side, part in zip("ab", cable.name.split("--"), strict=True)
        }
        ends = [
            {
                "node": end.node,
                "port": spec[side]["port"],
                "rdmaDevice": end.device,
                "address": end.address,
                "speedMbps": cable.speed_mbps,
                "seesPeer": True,
            }
            for side, end in (("a", cable.a), ("b", cable.b))
        ]
        meta = {"name": cable.name, "uid": f"uid-{number}", "resourceVersion": str(number)}
        yield LINKS, {"metadata": meta, "spec": spec, "status": {"endpoints": ends, "conditions": [usable]}}


def _read(cache: Cache, *, pods: bool = True) -> Index:
    """An index that has read every object, but made no fleet yet. ``pods`` False: pods are still to be read."""
    index = Index(cache, lambda: TRUSTING)
    assert index.nodes and index.profiles and index.links and (not pods or index.taken)
    return index


def snapshot_figures(repeats: int, count: int, say: Say) -> list[Figure]:
    """Memory of the snapshot beyond the objects, and what it costs when one Mac changes."""
    cache = Cache()
    for collection, item in objects(count):
        cache[collection].put(item)
    for i, name in enumerate(list(cache[NODES].items) * 4):
        requests = {"cpu": "100m", "memory": "128Mi"}
        container = {"name": "c", "resources": {"requests": requests}, "ports": [{"hostPort": 9000 + i // count}]}
        meta = {"name": f"pod-{i}", "namespace": "kube-system", "uid": f"uid-pod-{i}", "resourceVersion": "1"}
        cache[PODS].put({"metadata": meta, "spec": {"nodeName": name, "containers": [container]}, "status": {}})
    index = _read(cache)
    say(f"placement: objects of {count} Macs made")
    gc.collect()
    tracemalloc.start()
    fleet = index.fleet
    assert fleet.parts(lan=False) and fleet.rates(rdma=True) and fleet.reached_by("mac-00000")
    gc.collect()
    per_mac = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    fresh = iter([_read(cache) for _ in range(repeats)])
    whole = _seconds(lambda: next(fresh).fleet, repeats)
    versions = itertools.count(10_000_000)
    one = next(iter(cache[NODES].items))

    def change() -> None:
        item = cache[NODES].items[one]
        version = next(versions)
        spec = {"unschedulable": bool(version % 2)}
        cache[NODES].put({**item, "spec": spec, "metadata": {**item["metadata"], "resourceVersion": str(version)}})
        changed = index.fleet
        if changed.macs[one].schedulable == bool(version % 2):
            raise AssertionError("the change is not in the snapshot")

    again = _seconds(change, 3 * repeats)
    some_pod = next(iter(cache[PODS].items.values()))

    def pod_changes() -> None:
        version = next(versions)
        memory = {"requests": {"memory": f"{64 + version % 64}Mi"}}
        spec = {**some_pod["spec"], "containers": [{"name": "c", "resources": memory}]}
        meta = {**some_pod["metadata"], "resourceVersion": str(version)}
        cache[PODS].put({**some_pod, "metadata": meta, "spec": spec})
        changed = index.fleet
        if changed.macs[one].free_bytes == changed.macs[one].allocatable_bytes:
            raise AssertionError("the pod's memory is not in the snapshot")

    pod_again = _seconds(pod_changes, 3 * repeats)

    fresh = iter([_read(cache, pods=False) for _ in range(repeats)])
    pod_whole = _seconds(lambda: next(fresh).fleet, repeats)
    note = f"{count} Macs in racks of {RACK}, {len(fleet.cables)} cables"
    kept = "derived from the previous one, against one built from scratch"
    return [
        Figure("snapshot memory", "B a Mac", (per_mac,), bound=Bound("<=", 2000), note=f"{note}; beyond the objects"),
        Figure("snapshot, one change", "ms", _ms(again), _ms(whole), "from scratch", Bound("<=", 0.2), f"{note}; {kept}"),
        Figure(
            "snapshot, one pod",
            "ms",
            _ms(pod_again),
            _ms(pod_whole),
            "from scratch",
            Bound("<=", 0.2),
            f"{note}, {len(cache[PODS].items)} pods; what is taken, and the fleet",
        ),
    ]


def figures(repeats: int, say: Say) -> list[Figure]:
    """All of them."""
    found = [*against_listing(repeats), *one_switch(repeats), *growing(repeats, say), *full(repeats), *hard(repeats)]
    found += [*unusual(repeats, say), *shapes.figures(repeats, say), *advice(repeats, say)]
    return [*found, *snapshot_figures(repeats, 1_000, say)]


def main() -> int:
    print(table(figures(3, lambda text: print(text, file=sys.stderr, flush=True))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
