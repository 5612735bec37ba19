"""``cables``: the cables that groups need beside those that the Macs see. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from thunderfleet_crds.vocabulary import ConditionType
from thunderfleet_view import facts
from thunderfleet_view.facts import Json, Picture
from thunderfleet_view.problems import cable_problem

from thunderfleet_cli.view.page import BAD, DOUBTFUL, GOOD, Cell, Page
from thunderfleet_cli.view.status import unread

COLUMNS = ("CABLE", "SEEN BY", "SPEED", "GBIT/S", "RTT", "RDMA", "NEEDED BY", "PROBLEM")


def as_values(picture: Picture) -> list[dict[str, Any]]:
    """Every cable: which Macs see it (``seenBy``), which groups need it (``neededBy``), what it can do, what is wrong."""
    needed = facts.users(picture)
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
            "problem": cable_problem(link),
        }
        for link in picture.links
    ]
    return found + [
        {"name": name, "connected": False, "seenBy": [], "neededBy": list(needed[name]), "problem": problem}
        for name, problem in absent(picture)
    ]


def absent(picture: Picture) -> Iterator[tuple[str, str]]:
    """Names of the cables that groups need and no Mac sees, and what to do."""
    if "links" in picture.unread:
        return
    known = {facts.name(link) for link in picture.links}
    for name in sorted(facts.users(picture).keys() - known):
        yield name, "no Mac detects this cable: plug it into these ports"


def seen_by(link: Json) -> list[str]:
    """Names of the Macs that see the other end."""
    ends = facts.status(link).get("endpoints") or ()
    return [facts.plain(end.get("node")) for end in ends if end.get("seesPeer")]


def show(picture: Picture, page: Page) -> None:
    """A table, faulty cables that groups need first."""
    needed = facts.users(picture)
    rows = [
        _row(link, needed.get(facts.name(link), ())) for link in sorted(picture.links, key=lambda link: _rank(link, needed))
    ]
    missing = [((name, BAD), "-", "", "", "", "", ",".join(needed[name]), problem) for name, problem in absent(picture)]
    if rows or missing:
        page.table(COLUMNS, [*missing, *rows])
    elif "links" not in picture.unread:
        page.line("no Mac sees a cable to another Mac")
    unread(picture, page)


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
