"""Chooses the group for a request: the one that can answer first, by its load and its cached prompts. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from thunderfleet_router.decide.prefixes import BLOCK_BYTES

SPILL_BYTES = 3072
"""Bytes of cached prompt that outweigh one more request in flight."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group that can take a request.

    ``cached``: blocks of the prompt that it probably has. ``used``: when it was last chosen, as a counter.
    """

    name: str
    in_flight: int
    cached: int
    used: int = 0


def choose(candidates: Iterable[Candidate]) -> Candidate | None:
    """The group that gets the request; None if there is none. Among equals, the one that was chosen longest ago."""

    def cost(one: Candidate) -> tuple[int, int, int, str]:
        return (one.in_flight * SPILL_BYTES - one.cached * BLOCK_BYTES, one.in_flight, one.used, one.name)

    return min(candidates, key=cost, default=None)
