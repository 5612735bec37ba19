"""Fleets of 10,000 Macs that are made to be slow to plan: wiring, memory, layers and requests drawn from a seed.

``python -m tests.bench.planner.shapes FIRST LAST`` plans for the fleets of these seeds, prints the seconds of processor time
that each took, and then the slowest.
"""

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from thunderfleet_crds.vocabulary import PlacementPolicy, Split, Transport
from thunderfleet_operator.placement import (
    Answer,
    Cable,
    Dials,
    End,
    Fleet,
    KVLayer,
    Mac,
    MemoryRequest,
    ModelFacts,
    Placement,
    Question,
    Request,
    Taint,
    TensorFacts,
    Unplaceable,
    Unsteady,
    WhatIsBetter,
    WherePlaced,
)
from thunderfleet_operator.placement.questions import answer

from tests.bench.figures import Bound, Figure

GIB = 2**30
MACS = 10_000
SLOWEST = (22, 38, 40, 46, 80, 2022, 2077, 2100)
"""Seeds of the slowest shapes of some 500. Nearly all have at most six cables a Mac; 22 has 31."""
CHIPS = (("Apple M3 Ultra", 80), ("Apple M4 Max", 40), ("Apple M4 Pro", 20), ("Apple M2 Ultra", 76), ("Apple M5 Max", 40))
Pairs = Iterator[tuple[int, int]]
Joined = Sequence[tuple[int, int]]
Drawn = dict[str, Any]


def _blocks(size: int, step: int) -> Callable[[int], Pairs]:
    """Meshes of ``size`` Macs, one beginning every ``step``: they share Macs if that is less."""
    return lambda count: (pair for i in range(0, count - size + 1, step) for pair in combinations(range(i, i + size), 2))


def _circulant(*steps: int) -> Callable[[int], Pairs]:
    return lambda count: ((i, (i + step) % count) for i in range(count) for step in steps)


def _bipartite(size: int, step: int) -> Callable[[int], Pairs]:
    """Halves of ``size`` Macs, each Mac joined with all of the other half: no three Macs are a mesh."""

    def pairs(count: int) -> Pairs:
        for i in range(0, count - 2 * size + 1, step):
            yield from product(range(i, i + size), range(i + size, i + 2 * size))

    return pairs


def _mixed(size: int, degree: int) -> Callable[[int], Pairs]:
    """Meshes of ``size``, joined at random."""

    def pairs(count: int) -> Pairs:
        yield from _blocks(size, size)(count)
        dice = random.Random(size)
        for _ in range(degree):
            order = list(range(count))
            dice.shuffle(order)
            yield from zip(order[::2], order[1::2], strict=False)

    return pairs


def _tree(width: int) -> Callable[[int], Pairs]:
    return lambda count: ((i, (i - 1) // width) for i in range(1, count))


def _hubs(size: int) -> Callable[[int], Pairs]:
    """Stars, and a ring over their centers."""

    def pairs(count: int) -> Pairs:
        for i in range(0, count - size + 1, size):
            yield from ((i, j) for j in range(i + 1, i + size))
            yield i, (i + size) % (count // size * size)

    return pairs


WIRINGS: dict[str, Callable[[int], Pairs]] = {
    **{f"meshes of {size}": _blocks(size, size) for size in (2, 3, 4, 5, 6, 7, 8, 12, 32, 64)},
    **{
        f"meshes of {size}, {size - step} shared": _blocks(size, step)
        for size, step in ((6, 3), (4, 2), (5, 1), (7, 6), (8, 2))
    },
    "ring": _circulant(1),
    "circulant 1 2": _circulant(1, 2),
    "circulant 1 2 3": _circulant(1, 2, 3),
    "circulant 1 2 3 4 5 6": _circulant(1, 2, 3, 4, 5, 6),
    "torus": _circulant(1, 100),
    "torus of three": _circulant(1, 22, 484),
    "far": _circulant(1, 1371, 3079),
    "odd far": _circulant(101, 1371, 3079),
    "six at random": _mixed(1, 6),
    "three at random": _mixed(1, 3),
    "meshes of 4, joined": _mixed(4, 3),
    "meshes of 6, joined": _mixed(6, 1),
    "meshes of 3, joined": _mixed(3, 2),
    "halves of 3": _bipartite(3, 6),
    "halves of 3, chained": _bipartite(3, 3),
    "halves of 6": _bipartite(6, 12),
    "tree": _tree(5),
    "stars": _hubs(20),
    "no cables": lambda count: iter(()),
}


@dataclass(frozen=True)
class Shape:
    """A question about a fleet, and how they were drawn."""

    question: Question
    drawn: Drawn


def _layers(dice: random.Random, kind: str, count: int, total: int) -> tuple[int, ...]:
    each = total // count
    if kind == "equal":
        return (each,) * count
    if kind == "alternating":
        return tuple(each * (1 + i % 2) * 2 // 3 for i in range(count))
    if kind == "primes":
        return tuple(each * (50 + i * 37 % 100) // 100 for i in range(count))
    if kind == "one large":
        return tuple(each * (count // 8 if i == count // 2 else 1) for i in range(count))
    return tuple(each * dice.randint(1, 200) // 100 for _ in range(count))


def _model(dice: random.Random, drawn: Drawn, free: int) -> ModelFacts:
    """A model that needs about ``drawn["ranks"]`` Macs with ``free`` bytes."""
    total = max(GIB, int(free * drawn["ranks"] * drawn["tight"] / 1.1))
    layers = _layers(dice, drawn["layers"], drawn["layer count"], total)
    whole = sum(layers)
    splits: Sequence[int] = drawn["tensor"]
    tensor = tuple(TensorFacts(size, (whole // size,) * size) for size in splits)
    if drawn["tensor uneven"]:
        tensor = tuple(TensorFacts(size, tuple(whole // size + i * 2**20 for i in range(size))) for size in splits)
    return ModelFacts(
        "/models/large",
        "org/large",
        bytes=whole,
        tensor=tensor,
        layer_bytes=layers,
        shared_bytes=drawn["shared"],
        active_bytes=whole if drawn["predicted"] else 0,
        bits=4,
        kv=tuple(KVLayer(0, 4096) for _ in layers) if drawn["kv"] else (),
    )


def _draw(dice: random.Random) -> Drawn:
    return {
        "wiring": dice.choice(list(WIRINGS)),
        "dials": dice.choice(("none", "none", "unpublished", "cables", "next", "few", "many", "blocks", "one way", "failed")),
        "free": dice.choice(("equal", "two", "distinct", "random", "steps")),
        "ranks": dice.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 30, 60, 70)),
        "tight": dice.choice((0.6, 0.9, 0.97, 0.99, 1.0, 1.01, 1.2)),
        "layers": dice.choice(("equal", "alternating", "primes", "one large", "random")),
        "layer count": dice.choice((8, 32, 61, 61, 126, 400)),
        "tensor": dice.choice(((1,), (1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64), (1, 2, 3, 4, 5, 6, 7, 8))),
        "tensor uneven": dice.random() < 0.2,
        "shared": dice.choice((0, GIB)),
        "predicted": dice.random() < 0.85,
        "kv": dice.random() < 0.4,
        "chips": dice.choice((1, 1, 2, 5)),
        "measured": dice.choice(("no", "no", "six", "many")),
        "rates": dice.choice(("equal", "equal", "two", "many")),
        "in use": dice.choice((0, 0, 0.1, 0.5)),
        "devices": dice.choice(("own", "own", "own", "one", "scarce")),
        "cohorts": dice.choice(("one", "one", "one", "versions", "folders", "copies", "Macs", "some")),
        "lacking": dice.choice((0, 0, 0.2, 0.9)),
        "no rdma": dice.choice((0, 0, 0.3, 1)),
        "unsteady": dice.choice((0, 0, 0.3)),
        "avoid": dice.choice((0, 0, 2, 64, 3000)),
        "no ports": dice.choice((0, 0, 0, 0.5)),
        "policy": dice.choice((PlacementPolicy.FEWEST, PlacementPolicy.FEWEST, PlacementPolicy.FASTEST, None)),
        "transport": dice.choice((Transport.AUTO,) * 3 + (Transport.RING, Transport.JACCL, Transport.JACCL_RING)),
        "split": dice.choice((Split.AUTO, Split.AUTO, Split.AUTO, Split.PIPELINE, Split.TENSOR)),
        "min": dice.choice((1, 1, 1, 2, 3, 7, 16)),
        "max": dice.choice((None, None, None, 8, 64)),
        "bare": dice.random() < 0.3,
        "runners up": dice.choice((0, 0, 3)),
        "better": dice.random() < 0.15,
        "order": dice.choice(("as is", "shuffled")),
    }  # fmt: skip


def shape(seed: int, count: int = MACS, **fixed: Any) -> Shape:
    """The shape of a seed. ``fixed``: instead of what would be drawn."""
    dice = random.Random(seed)
    drawn = {**_draw(dice), **fixed}
    base = 64 * GIB
    model = _model(dice, drawn, base)
    names = [f"mac-{i:05d}" for i in range(count)]
    if drawn["order"] == "shuffled":
        dice.shuffle(names)
    pairs = sorted({(min(pair), max(pair)) for pair in WIRINGS[drawn["wiring"]](count) if pair[0] != pair[1]})
    cables = list(_cables(dice, drawn, names, pairs))
    macs = list(_macs(dice, drawn, names, pairs, model, base))
    return Shape(_question(dice, drawn, Fleet(macs, cables), names), drawn)


def _cables(dice: random.Random, drawn: Drawn, names: Sequence[str], pairs: Joined) -> Iterator[Cable]:
    def end(i: int, j: int) -> End:
        device = "rdma" if drawn["devices"] == "one" else f"rdma-{j}"
        return End(names[i], f"169.254.{j % 250}.{i % 250}", device, dice.randint(0, 3) if drawn["devices"] == "scarce" else 10)

    for i, j in pairs:
        speed = {"equal": 80_000, "two": dice.choice((40_000, 80_000)), "many": 80_000}[drawn["rates"]]
        measured = dice.randint(20_000, 70_000) if drawn["rates"] == "many" else None
        yield Cable(
            f"{names[i]}--{names[j]}",
            end(i, j),
            end(j, i),
            speed,
            rdma_problem="off" if dice.random() < drawn["no rdma"] else None,
            rdma_mbps=measured,
            ring_mbps=measured,
            in_use=dice.random() < drawn["in use"],
            unsteady=Unsteady("was interrupted", last_resort=True) if dice.random() < drawn["unsteady"] else None,
        )


def _address(i: int) -> str:
    return f"10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}"


def _dialled(dice: random.Random, drawn: Drawn, count: int, pairs: Joined) -> Callable[[int], list[int] | None]:
    kind = drawn["dials"]
    near: dict[int, list[int]] = {}
    for i, j in pairs:
        near.setdefault(i, []).append(j)
        near.setdefault(j, []).append(i)

    def peers(i: int) -> list[int] | None:
        if kind == "unpublished":
            return None
        if kind == "none":
            return []
        if kind in ("cables", "failed"):
            return near.get(i, [])
        if kind == "next":
            return [*near.get(i, []), (i + 1) % count, (i + 8) % count]
        if kind == "one way":
            return [j % count for j in range(i + 1, i + 12)]
        if kind == "few":
            return [dice.randrange(count) for _ in range(6)]
        if kind == "many":
            return [dice.randrange(count) for _ in range(40)]
        first = i // 100 * 100
        return [j for j in range(first, min(first + 100, count)) if j != i]

    return peers


def _free(dice: random.Random, kind: str, i: int, base: int) -> int:
    if kind == "equal":
        return base
    if kind == "two":
        return base * (1 + i % 2) // 2 + base // 4
    if kind == "distinct":
        return base + i * 2**20
    if kind == "steps":
        return base // 4 * (1 + i * 7 % 8)
    return dice.randint(base // 8, 2 * base)


def _copies(dice: random.Random, kind: str, i: int, model: ModelFacts) -> tuple[ModelFacts, ...]:
    if kind == "folders":
        return (replace(model, path=f"/folder-{i // 4}"),)
    if kind == "Macs":
        return (replace(model, path=f"/folder-{i}"),)
    if kind == "copies":
        return tuple(replace(model, path=f"/folder-{i // 8 % 5 + j}") for j in range(3))
    if kind == "some":
        return (model,) if i // 4 % 3 else ()
    return (model,)


LACKING: Sequence[dict[str, Any]] = (
    {"schedulable": False},
    {"taints": (Taint("dedicated", "x"),)},
    {"models": ()},
    {"ready": False},
    {"backends": frozenset({"ring"})},
    {"profiled": False},
)


def _macs(
    dice: random.Random,
    drawn: Drawn,
    names: Sequence[str],
    pairs: Joined,
    model: ModelFacts,
    base: int,
) -> Iterator[Mac]:
    count = len(names)
    peers = _dialled(dice, drawn, count, pairs)
    known: dict[tuple[ModelFacts, ...], tuple[ModelFacts, ...]] = {}
    for i, name in enumerate(names):
        reached = peers(i)
        dials = None
        if reached is not None:
            rows = [(names[j], _address(j)) for j in reached]
            failed = [(names[j], f"169.254.{i % 250}.{j % 250}") for j in reached] if drawn["dials"] == "failed" else []
            rates = {row: dice.randint(700, 9_000) for row in rows} if drawn["rates"] == "many" else None
            dials = Dials.of(rows, rates, failed)
        chip, cores = CHIPS[i % drawn["chips"]]
        copies = _copies(dice, drawn["cohorts"], i, model)
        mac = Mac(
            name,
            _address(i),
            (free := _free(dice, drawn["free"], i, base)),
            free,
            models=known.setdefault(copies, copies),
            backends=frozenset({"ring", "jaccl"}),
            dials=dials,
            chip=chip,
            gpu_cores=cores,
            mlx_version=str(i // 4 % 20) if drawn["cohorts"] == "versions" else "0.32.4",
            memory_bandwidth={"no": 0, "six": 300_000 + i % 6 * 60_000, "many": 300_000 + i * 7 % 5000 * 80}[drawn["measured"]],
            gigaflops=0 if drawn["measured"] == "no" else 30_000,
            in_use=dice.random() < drawn["in use"],
        )
        yield replace(mac, **dice.choice(LACKING)) if dice.random() < drawn["lacking"] else mac


def _question(dice: random.Random, drawn: Drawn, fleet: Fleet, names: Sequence[str]) -> Question:
    request = Request(
        repository="org/large",
        memory=MemoryRequest(1024, 1, 0, 10),
        policy=drawn["policy"],
        transport=drawn["transport"],
        split=drawn["split"],
        min_nodes=drawn["min"],
        max_nodes=max(drawn["min"], drawn["max"]) if drawn["max"] else None,
        ring_without_relay=drawn["bare"],
        no_ring_ports={name: "has no ports" for name in names if dice.random() < drawn["no ports"]},
    )
    if drawn["better"]:
        size = max(drawn["min"], min(drawn["ranks"], 64))
        first = dice.randrange(len(names) - size)
        return WhatIsBetter(fleet, replace(request, current=tuple(names[first : first + size])), None)
    requests: tuple[Request, ...] = (request,)
    if drawn["avoid"]:
        requests = (
            replace(request, avoid={name: "failed" for name in dice.sample(names, min(drawn["avoid"], len(names)))}),
            request,
        )
    if fleet.last_resort:
        requests = tuple(one for each in requests for one in (each, replace(each, steady_cables=False)))
    return WherePlaced(fleet, requests, drawn["runners up"])


def fresh(question: Question) -> Question:
    """The same about the same fleet without cached indexes."""
    return replace(question, fleet=Fleet(question.fleet.macs.values(), question.fleet.cables.values()))


def _said(found: Answer) -> str:
    if isinstance(found, Placement):
        return f"{len(found.ranks)} ranks{'' if found.proven else ', limit'}"
    if isinstance(found, Unplaceable):
        return f"none ({found.reason}){'' if found.proven else ', limit'}"
    return "better" if found else "nothing better"


def measured(seed: int, repeats: int = 1, **fixed: Any) -> tuple[float, str, Drawn]:
    """Seconds of processor time, the least of several runs; what was answered; and the shape."""
    made = shape(seed, **fixed)
    least, said = float("inf"), ""
    for _ in range(repeats):
        question = fresh(made.question)
        gc.collect()
        began = time.process_time()
        said = _said(answer(question))
        least = min(least, time.process_time() - began)
        if least < 3:
            break
    return least, said, made.drawn


def figures(repeats: int, say: Callable[[str], None]) -> list[Figure]:
    """The slowest known shapes."""
    found = []
    for seed in SLOWEST:
        seconds, said, drawn = measured(seed, repeats)
        note = f"{MACS} Macs wired as {drawn['wiring']}, {drawn['cohorts']} cohorts; {said}"
        found.append(Figure(f"placement shape {seed}", "s", (seconds,), bound=Bound("<=", 5), note=note))
        say(f"placement of shape {seed}: {seconds:.1f} s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.planner.shapes", description="Measures fleets that are made to be slow."
    )
    parser.add_argument("first", type=int, nargs="?", default=0, help="first seed (default: 0)")
    parser.add_argument("last", type=int, nargs="?", default=100, help="the seed after the last (default: 100)")
    arguments = parser.parse_args()
    first, last = arguments.first, arguments.last
    slowest: list[tuple[float, int, str]] = []
    for seed in range(first, last):
        seconds, said, drawn = measured(seed, repeats=3)
        print(json.dumps({"seed": seed, "seconds": round(seconds, 2), "said": said, **drawn}), flush=True)
        slowest = sorted([*slowest, (seconds, seed, said)], reverse=True)[:10]
    for seconds, seed, said in slowest:
        print(f"{seed}: {seconds:.2f} s, {said}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
