"""Near misses with too little memory."""

from collections.abc import Sequence

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Split, Transport

from thunderfleet_operator.placement.explain.miss import COST_MEMORY, Miss, named
from thunderfleet_operator.placement.fleet import Mac
from thunderfleet_operator.placement.memory import Bounds
from thunderfleet_operator.placement.result import NearMiss
from thunderfleet_operator.placement.units import distinct_gib, gib


def alone_text(mac: Mac, need: int) -> str:
    """Why a Mac cannot hold a model of ``need`` bytes alone, as the end of a sentence that begins with its name.

    It includes the allocatable memory if some is in use, because then waiting may help instead of buying.
    """
    free, needed, allocatable = distinct_gib(mac.free_bytes, need, max(mac.allocatable_bytes, mac.free_bytes))
    of = f" of {allocatable}" if mac.allocatable_bytes > mac.free_bytes else ""
    return f"has {free}{of} free, the whole model needs {needed}"


def single_mac_shortage(members: Sequence[Mac], need: Bounds | str) -> Miss:
    """The Mac that comes closest to holding the whole model. ``need``: bytes, or why they are not known."""
    best = min(members, key=lambda mac: (-mac.free_bytes, mac.name))
    if isinstance(need, str):
        near = NearMiss((best.name,), Transport.NONE, Split.NONE, f"{best.name}: {need}")
        return Miss(COST_MEMORY + 1, 0, near, Reason.NO_ROOM)
    short = max(0, need.together - best.free_bytes)
    text = f"{best.name} {alone_text(best, need.together)}"
    return Miss(COST_MEMORY, short, NearMiss((best.name,), Transport.NONE, Split.NONE, text, short), Reason.NO_ROOM)


def has_room(ranked: Sequence[Mac], need: Bounds, size: int) -> bool:
    """Whether the first ``size`` Macs have the necessary memory. ``ranked``: by free memory, the most first."""
    return sum(mac.free_bytes for mac in ranked[:size]) >= need.together and ranked[size - 1].free_bytes >= need.least


def group_shortage(
    ranked: Sequence[Mac], need: Bounds, transport: PlacedTransport, split: PlacedSplit, size: int, subject: str
) -> Miss:
    """A group of the first ``size`` Macs, which does not have enough memory.

    ``ranked``: by free memory, the most first. ``subject``: what the message says before the size of their free memory.
    """
    macs = list(ranked[:size])
    total = sum(mac.free_bytes for mac in macs)
    weakest = min(mac.free_bytes for mac in macs)
    short = max(need.together - total, need.least - weakest, 1)
    nodes = tuple(sorted(mac.name for mac in macs))
    together, free = distinct_gib(need.together, total)
    wants = f"{split} over {size} Macs needs {together}"
    if need.together <= total:
        wants += f", at least {gib(need.least)} on each"
    text = f"{wants}; {subject} {free} free: {named(nodes)}"
    return Miss(COST_MEMORY, short, NearMiss(nodes, transport, split, text, short), Reason.NO_ROOM)
