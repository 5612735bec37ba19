"""``cables``: the cables that groups need, and the cables that the Macs see. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thunderfleet_crds.vocabulary import ConditionType
from thunderfleet_view import facts
from thunderfleet_view.facts import Json, Picture
from thunderfleet_view.problems import cable_problem

from thunderfleet_cli.view.page import BAD, DOUBTFUL, GOOD, Cell, Page
from thunderfleet_cli.view.reports.status import unread

COLUMNS = ("CABLE", "SEEN BY", "SPEED", "GBIT/S", "RTT", "RDMA", "NEEDED BY", "PROBLEM")


def as_values(picture: Picture) -> list[dict[str, Any]]:
    """Every cable: which Macs see it (``seenBy``), its capabilities and its problems.

    ``neededBy``: the groups that use it. ``leftBy``: those that used it until it failed.
    """
    needed, left = facts.users(picture), facts.left_by(picture)
    found = [
        {
            "name": facts.name(link),
            "connected": facts.holds(link, ConditionType.CONNECTED),
            "seenBy": seen_by(link),
            "speed": facts.plain(facts.status(link).get("speed") or ""),
            "measuredGbps": facts.plain(facts.status(link).get("gbps") or ""),
            "rtt": facts.plain(facts.status(link).get("rtt") or ""),
            "rdma": facts.plain(facts.status(link).get("rdma") or ""),
            "neededBy": list(needed.get(facts.name(link), ())),
            "leftBy": list(left.get(facts.name(link), ())),
            "problem": cable_problem(link),
        }
        for link in picture.links
    ]
    return found + [
        {
            "name": name,
            "connected": False,
            "seenBy": [],
            "neededBy": list(needed.get(name, ())),
            "leftBy": list(left.get(name, ())),
            "problem": problem,
        }
        for name, problem in absent(picture)
    ]


def absent(picture: Picture) -> Iterator[tuple[str, str]]:
    """Names of the cables that no Mac detects, but groups need or needed until the cable failed, each with advice."""
    if "links" in picture.unread:
        return
    known = {facts.name(link) for link in picture.links}
    for name in sorted((facts.users(picture).keys() | facts.left_by(picture).keys()) - known):
        yield name, "no Mac detects this cable: plug it into these ports"


def seen_by(link: Json) -> list[str]:
    """Names of the Macs that see the other end."""
    ends = facts.status(link).get("endpoints") or ()
    return [facts.plain(end.get("node")) for end in ends if end.get("seesPeer")]


def show(picture: Picture, page: Page) -> None:
    """A table, faulty cables that groups need first."""
    needed = _needed(picture)
    rows = [
        _row(link, needed.get(facts.name(link), ())) for link in sorted(picture.links, key=lambda link: _rank(link, needed))
    ]
    missing = [((name, BAD), "-", "", "", "", "", ",".join(needed[name]), problem) for name, problem in absent(picture)]
    if rows or missing:
        page.table(COLUMNS, [*missing, *rows])
    elif "links" not in picture.unread:
        page.line("no Mac detects a cable to another Mac")
    unread(picture, page)


def _needed(picture: Picture) -> Mapping[str, Sequence[str]]:
    """For each cable, the groups that use it, and the groups that have left it."""
    used, left = facts.users(picture), facts.left_by(picture)
    return {
        name: (*used.get(name, ()), *(f"{group} (left it)" for group in left.get(name, ()) if group not in used.get(name, ())))
        for name in (*used, *left)
    }


def _rank(link: Json, needed: Any) -> tuple[bool, bool, str]:
    return not cable_problem(link), facts.name(link) not in needed, facts.name(link)


def _row(link: Json, needed: Sequence[str]) -> Sequence[Cell]:
    status, problem = facts.status(link), cable_problem(link)
    connected = facts.holds(link, ConditionType.CONNECTED)
    return (
        (facts.name(link), (DOUBTFUL if problem else GOOD) if connected else BAD),
        ",".join(seen_by(link)) or "-",
        facts.plain(status.get("speed") or ""),
        facts.plain(status.get("gbps") or ""),
        facts.plain(status.get("rtt") or ""),
        facts.plain(status.get("rdma") or ""),
        ",".join(needed),
        problem,
    )
