"""Who renews its Lease, and whose clock is wrong, as Leases show. Pure.

Leases are compared with each other, because while the API server does not answer nobody can renew. They are compared by the
clock of the API server, which notes in an object's metadata when a field was changed: the time that a component writes into its
Lease is only as right as its own clock.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from thunderfleet_view.facts import Json, parsed_time

STALE_SECONDS: Final = 25.0
"""Something that has been behind the others for longer does not work. Components renew their Leases every few seconds, kubelets
every ten."""
WRONG_SECONDS: Final = 10.0
"""A clock that is further off is wrong. A request takes at most a few seconds, and the API server writes whole seconds."""


def noted(lease: Json) -> datetime | None:
    """When the API server has taken the last renewal, by its own clock; None if it does not say."""
    times = (
        parsed_time(entry.get("time"))
        for entry in lease.get("metadata", {}).get("managedFields") or ()
        if "f:renewTime" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    )
    return max((time for time in times if time is not None), default=None)


def written(lease: Json) -> datetime | None:
    """The time of the last renewal that its holder wrote."""
    return parsed_time((lease.get("spec") or {}).get("renewTime"))


def ahead(lease: Json) -> float:
    """By how many seconds the clock of the holder is wrong (negative: behind); 0 if it is right, or if that is not known."""
    by_server, by_holder = noted(lease), written(lease)
    if by_server is None or by_holder is None:
        return 0.0
    seconds = (by_holder - by_server).total_seconds()
    return seconds if abs(seconds) > WRONG_SECONDS else 0.0


def _renewed(lease: Json) -> float:
    """When it was renewed, in seconds; 0 if it does not say."""
    found = noted(lease) or written(lease)
    return found.timestamp() if found is not None else 0.0


def behind(leases: Mapping[str, Json], others: Iterable[Json] = ()) -> Mapping[str, float]:
    """Of each Lease that is stale, for how many seconds it has not been renewed while another one has.

    ``others``: Leases to compare with.
    """
    renewed = {name: time for name, lease in leases.items() if (time := _renewed(lease))}
    newest = max((*renewed.values(), *map(_renewed, others)), default=0.0)
    return {name: newest - time for name, time in renewed.items() if newest - time > STALE_SECONDS}


def silent_kubelets(kubelets: Mapping[str, Json], others: Iterable[Json] = ()) -> Mapping[str, float]:
    """Of each Node whose kubelet does not renew its Lease, for how many seconds.

    None if that are most of several: then it was the API server that did not answer, and they will renew in a moment.
    """
    found = behind(kubelets, others)
    return found if len(found) <= max(1, len(kubelets) // 2) else {}
