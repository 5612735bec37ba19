"""Cables that corrupted data of a group: no group of its ModelDeployment is placed on them for a while.

Their ThunderboltLinks do not show the fault, so the group's status records it. A cable is avoided until it has been unplugged
and plugged in again, but for at most a day. If there is no other placement for five minutes, the cable is used again: the check
of the connections then shows whether the fault is gone.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from thunderfleet_crds.kinds.modeldeployment import MAX_AVOIDED_LINKS, AvoidedLink, Failure
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_operator.placement import Cable, Fleet, Unsteady

LAST_RESORT_SECONDS = 300.0
FORGOTTEN_SECONDS = 86_400.0


def avoided(
    known: Iterable[AvoidedLink], failure: Failure | None, epoch: int, fleet: Fleet, now: datetime
) -> tuple[AvoidedLink, ...]:
    """The cables that a group avoids. ``failure``: of its newest placement ``epoch``, if that has failed.

    Each failure adds a cable once. Entries that have expired stay while their placement is the newest, so that the same failure
    does not add them again.
    """
    found = {link.name: link for link in known if link.epoch >= epoch or _lasts(link, fleet, now)}
    name = failure.link if failure is not None and failure.reason == Reason.LINK_CORRUPTS else None
    if name is not None and (name not in found or found[name].epoch < epoch):
        cable = fleet.cables.get(name)
        connection = cable.connection if cable is not None else ""
        found[name] = AvoidedLink(name=name, epoch=epoch, connection=connection, since=now)
    latest = sorted(found.values(), key=lambda link: (link.since, link.name))[-MAX_AVOIDED_LINKS:]
    return tuple(sorted(latest, key=lambda link: link.name))


def _lasts(link: AvoidedLink, fleet: Fleet, now: datetime) -> bool:
    cable = fleet.cables.get(link.name)
    # A time in the future was written while the clock was wrong.
    recent = abs(age_seconds(link.since, now)) < FORGOTTEN_SECONDS
    return recent and (cable is None or cable.connection == link.connection)


def counted(links: Iterable[AvoidedLink], fleet: Fleet, now: datetime) -> tuple[AvoidedLink, ...]:
    """Returns the cables that get no new placements now."""
    return tuple(link for link in links if link.name in fleet.cables and _lasts(link, fleet, now))


def seconds_left(links: Iterable[AvoidedLink], now: datetime) -> float | None:
    """Returns the seconds until the first of these entries expires."""
    return min((FORGOTTEN_SECONDS - age_seconds(link.since, now) for link in links), default=None)


def without(fleet: Fleet, links: Iterable[AvoidedLink], now: datetime) -> Fleet:
    """Returns the fleet in which these cables get no new placements."""
    marked: dict[str, Cable] = {}
    for link in sorted(counted(links, fleet, now), key=lambda link: link.since):
        cable = fleet.cables[link.name]
        marked[link.name] = replace(cable, unsteady=_mark(link, cable, now))
    return fleet.changed(cables=marked.values()) if marked else fleet


def _mark(link: AvoidedLink, cable: Cable, now: datetime) -> Unsteady:
    problem = (
        f"cable {link.name} corrupted data at {link.since:%Y-%m-%d %H:%M} UTC: replace it, or unplug it, wait ten "
        "seconds and plug it in again"
    )
    steady = cable.unsteady is None or cable.unsteady.last_resort
    return Unsteady(problem, steady and age_seconds(link.since, now) >= LAST_RESORT_SECONDS)
