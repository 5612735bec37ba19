"""The choice by predicted speed by brute force: every set of Macs, order, transport and split, and then the procedure."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, PlacementPolicy, Split, Transport
from thunderfleet_operator.placement import Fleet, ModelFacts, Request, predict
from thunderfleet_operator.placement.memory import Needs

from tests.unit.operator.placement.test_placement_properties import ALLOWED, arrangements, fits, problem, splits

CHIPS = (("M3 Ultra", 80), ("M4 Max", 40), ("M4 Pro", 20), ("M2 Ultra", 76), ("M4", 10))
ALIKE = 1.1


class Way(NamedTuple):
    """One possible placement."""

    speed: float
    split: PlacedSplit


def rated(seed: int) -> tuple[Fleet, ModelFacts, Request]:
    """A problem whose speeds can be predicted."""
    fleet, facts, request = problem(seed)
    dice = random.Random(seed)
    if len(fleet.macs) == 7:
        # Brute force tries every order of a group.
        request = replace(request, min_nodes=min(request.min_nodes, 5), max_nodes=min(request.max_nodes or 5, 5))
    kinds = dice.sample(CHIPS, dice.randint(1, 3))
    facts = replace(facts, active_bytes=dice.choice((2, 10, 40, 120)) * 10**9, bits=4, mixture=dice.random() < 0.3)
    macs = []
    for mac in fleet.macs.values():
        chip, cores = dice.choice(kinds)
        macs.append(replace(mac, chip=f"Apple {chip}", gpu_cores=cores, memory_bandwidth=0, models=(facts,)))
    policy = dice.choice(tuple(PlacementPolicy))
    return Fleet(macs, fleet.cables.values()), facts, replace(request, policy=policy)


def ways(fleet: Fleet, facts: ModelFacts, request: Request, size: int) -> list[Way]:
    """All placements on so many Macs."""
    needs = Needs(facts, request.memory)
    kinds: list[tuple[PlacedTransport, bool]] = [(transport, False) for transport in ALLOWED[request.transport]]
    if Transport.RING in ALLOWED[request.transport]:
        kinds.append((Transport.RING, True))
    found = []
    for transport, lan in kinds:
        alone = transport is Transport.NONE
        if alone != (size == 1) or (transport is Transport.JACCL_RING and size == 2 and request.transport is Transport.AUTO):
            continue
        for split in splits(transport, request.split):
            for order in _orders(fleet, request, transport, size, lan=lan):
                macs = [fleet.macs[name] for name in order]
                divided = needs.divide(split, [mac.free_bytes for mac in macs]) if fits(macs, facts, split) else None
                if divided is not None:
                    shares = [last - first for first, last in divided.layers]
                    speed = predict(facts, macs, transport, split, shares, request.lengths)
                    assert speed is not None
                    found.append(Way(speed.decode, split))
    return found


def _orders(fleet: Fleet, request: Request, transport: PlacedTransport, size: int, *, lan: bool) -> Iterator[tuple[str, ...]]:
    needed = {Transport.NONE: set[str](), Transport.RING: {"ring"}}.get(transport, {"jaccl"})
    able = sorted(name for name, mac in fleet.macs.items() if mac.models and needed <= mac.backends)
    for names in combinations(able, size):
        for order, _, _ in arrangements(fleet, names, transport, request, lan):
            yield order


def procedure(fleet: Fleet, facts: ModelFacts, request: Request, alike: float = 1.0) -> tuple[int, Way] | None:
    """Size and placement by ``request.policy``. ``alike``: what thresholds are divided by."""
    more, tensor = (2.0, 1.5) if request.policy is PlacementPolicy.FEWEST else (1.1, 1.1)
    current: tuple[int, Way] | None = None
    for size in range(request.min_nodes, min(len(fleet.macs), request.max_nodes or 99) + 1):
        found = ways(fleet, facts, request, size)
        if current is not None:
            least = more / alike * current[1].speed
            found = [way for way in found if way.speed >= least]
        split = [way for way in found if way.split is Split.TENSOR]
        whole = [way for way in found if way.split is not Split.TENSOR]
        fast, other = max(split, default=None), max(whole, default=None)
        if fast is not None and (other is None or fast.speed >= tensor / alike * other.speed):
            current = size, fast
        elif other is not None:
            current = size, other
    return current
