"""Which components renew their Leases, and which clocks are wrong. Pure.

Leases are compared with each other, because no component can renew while the API server does not answer. They are compared by
the clock of the API server, which records in an object's metadata when a field changed. The time that a component writes into
its Lease is only as accurate as its own clock.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from thunderfleet_view.facts import Json, parsed_time

STALE_SECONDS: Final = 25.0
"""A component whose renewal is older than the others' by more than this does not work. Components renew their Leases every few
seconds, kubelets every ten."""
WRONG_SECONDS: Final = 10.0
"""A clock with a larger error is wrong. A request takes at most a few seconds, and the API server writes whole seconds."""


def noted(lease: Json) -> datetime | None:
    """When the API server received the last renewal, by its own clock; None if that is not recorded."""
    times = (
        parsed_time(entry.get("time"))
        for entry in lease.get("metadata", {}).get("managedFields") or ()
        if "f:renewTime" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    )
    return max((time for time in times if time is not None), default=None)


def written(lease: Json) -> datetime | None:
    """The time of the last renewal by the clock of the Lease's holder."""
    return parsed_time((lease.get("spec") or {}).get("renewTime"))


def ahead(lease: Json) -> float:
    """The error of the holder's clock in seconds (negative: behind); 0 if it is right or the error is unknown."""
    by_server, by_holder = noted(lease), written(lease)
    if by_server is None or by_holder is None:
        return 0.0
    seconds = (by_holder - by_server).total_seconds()
    return seconds if abs(seconds) > WRONG_SECONDS else 0.0


def _renewed(lease: Json) -> float:
    """The time of the renewal in seconds; 0 if unknown."""
    found = noted(lease) or written(lease)
    return found.timestamp() if found is not None else 0.0


def behind(leases: Mapping[str, Json], others: Iterable[Json] = ()) -> Mapping[str, float]:
    """For each stale Lease, how many seconds it has not been renewed while another Lease was.

    ``others``: Leases to compare with.
    """
    renewed = {name: time for name, lease in leases.items() if (time := _renewed(lease))}
    newest = max((*renewed.values(), *map(_renewed, others)), default=0.0)
    return {name: newest - time for name, time in renewed.items() if newest - time > STALE_SECONDS}


def silent_kubelets(kubelets: Mapping[str, Json], others: Iterable[Json] = ()) -> Mapping[str, float]:
    """For each Node whose kubelet does not renew its Lease, for how many seconds.

    Empty if most of several are stale: then the API server did not answer, and they will renew soon.
    """
    found = behind(kubelets, others)
    return found if len(found) <= max(1, len(kubelets) // 2) else {}
