"""``topology``: Macs, what runs on them, and the cables between them, as a drawing for a terminal. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thunderfleet_crds.vocabulary import ConditionType
from thunderfleet_view import facts
from thunderfleet_view.facts import Json, Picture
from thunderfleet_view.problems import cable_problem, macs, problem_of_mac, silent_macs

from thunderfleet_cli.view.page import BAD, DOUBTFUL, GOOD, QUIET, Page
from thunderfleet_cli.view.reports.status import unread


@dataclass(frozen=True)
class Mac:
    """A Mac of the drawing. ``ranks``: its ranks as (group, rank, state)."""

    name: str
    chip: str
    memory: str
    ready: bool
    problem: str
    ranks: Sequence[tuple[str, int, str]]


@dataclass(frozen=True)
class Cable:
    """A cable of the drawing: its ends as (Mac, port), and the groups that use it."""

    name: str
    a: tuple[str, int]
    b: tuple[str, int]
    connected: bool
    speed: str
    rdma: bool
    measured: str
    problem: str
    users: Sequence[str]


@dataclass(frozen=True)
class Topology:
    """Macs and cables, by name."""

    macs: Sequence[Mac]
    cables: Sequence[Cable]


def topology(picture: Picture) -> Topology:
    """The drawing's content. It includes Macs that only a cable names."""
    ranks = _ranks(picture)
    silent = silent_macs(picture)
    found = [_mac(node, profile, ranks.get(facts.name(node), ()), silent) for node, profile in macs(picture)]
    needed = facts.users(picture)
    cables = [_cable(link, needed.get(facts.name(link), ())) for link in picture.links]
    known = {mac.name for mac in found}
    others = sorted({end for cable in cables for end, _ in (cable.a, cable.b)} - known)
    found += [Mac(name, "", "", ready=False, problem="there is no such Node", ranks=()) for name in others]
    return Topology(sorted(found, key=lambda mac: mac.name), sorted(cables, key=lambda cable: cable.name))


def as_values(drawn: Topology) -> dict[str, Any]:
    """Macs and cables."""
    return {
        "macs": [
            {
                "name": mac.name,
                "chip": mac.chip,
                "ready": mac.ready,
                "problem": mac.problem,
                "ranks": [{"group": group, "rank": rank, "state": state} for group, rank, state in mac.ranks],
            }
            for mac in drawn.macs
        ],
        "cables": [
            {
                "name": cable.name,
                "ends": [{"node": node, "port": port} for node, port in (cable.a, cable.b)],
                "connected": cable.connected,
                "speed": cable.speed,
                "rdma": cable.rdma,
                "measuredGbps": cable.measured,
                "neededBy": list(cable.users),
                "problem": cable.problem,
            }
            for cable in drawn.cables
        ],
    }


def show(picture: Picture, page: Page) -> None:
    """Each Mac with its ranks, and below it its cables; double lines are cables with RDMA."""
    drawn = topology(picture)
    cables: dict[str, list[Cable]] = {}
    for cable in drawn.cables:
        for name in {cable.a[0], cable.b[0]}:
            cables.setdefault(name, []).append(cable)
    for mac in drawn.macs:
        style = GOOD if mac.ready and not mac.problem else DOUBTFUL if mac.ready else BAD
        page.cells(
            ("● ", style), (mac.name, "bold"), f"  {mac.chip} {mac.memory}".rstrip(), (f"  {mac.problem}".rstrip(), style)
        )
        for group, rank, state in mac.ranks:
            page.cells(f"│  {group} rank {rank}: ", (state, GOOD if state == "Serving" else DOUBTFUL))
        ends = [(cable, *_seen_from(cable, mac.name)) for cable in cables.get(mac.name, ())]
        for number, (cable, port, peer, peer_port) in enumerate(sorted(ends, key=lambda end: end[1])):
            _draw(page, cable, port, f"tb{peer_port} {peer}", last=number == len(ends) - 1)
    if not drawn.macs and "nodes" not in picture.unread:
        page.line("the cluster has no Macs: add one with `thunderfleet join`")
    unread(picture, page)


def _draw(page: Page, cable: Cable, port: int, peer: str, last: bool) -> None:
    wire = "══" if cable.rdma else "──"
    facts_ = " ".join(word for word in (cable.speed, f"{cable.measured} Gb/s" if cable.measured else "") if word)
    if cable.connected:
        style, middle = (DOUBTFUL if cable.problem else GOOD), f"{wire}{facts_ and f' {facts_} '}{wire}"
    else:
        style, middle = BAD, "─╳─"
    users = f"  {', '.join(cable.users)}" if cable.users else ""
    page.cells(
        f"{'└' if last else '├'}─ tb{port} ",
        (middle, style),
        f" {peer}",
        (users, QUIET),
        (f"  {cable.problem}".rstrip(), style),
    )


def _seen_from(cable: Cable, mac: str) -> tuple[int, str, int]:
    """This Mac's port, the other Mac and its port."""
    (_, port), (far, far_port) = (cable.a, cable.b) if cable.a[0] == mac else (cable.b, cable.a)
    return port, far, far_port


def _ranks(picture: Picture) -> dict[str, list[tuple[str, int, str]]]:
    found: dict[str, list[tuple[str, int, str]]] = {}
    for deployment in picture.deployments:
        for group in facts.groups(deployment):
            for rank in group.get("ranks") or ():
                entry = (facts.group_name(deployment, group), int(rank.get("rank", 0)), facts.plain(rank.get("state") or ""))
                found.setdefault(facts.plain(rank.get("node")), []).append(entry)
    return found


def _mac(node: Json, profile: Json | None, ranks: Sequence[tuple[str, int, str]], silent: Mapping[str, str]) -> Mac:
    hardware = facts.status(profile or {}).get("hardware") or {}
    return Mac(
        facts.name(node),
        facts.plain(hardware.get("chip") or "").removeprefix("Apple "),
        facts.gibibytes(hardware.get("memoryBytes")),
        facts.holds(node, "Ready"),
        problem_of_mac(node, profile, silent),
        sorted(ranks),
    )


def _cable(link: Json, users: Sequence[str]) -> Cable:
    a, b = link["spec"]["a"], link["spec"]["b"]
    status = facts.status(link)
    return Cable(
        facts.name(link),
        (facts.plain(a["node"]), int(a["port"])),
        (facts.plain(b["node"]), int(b["port"])),
        facts.holds(link, ConditionType.CONNECTED),
        facts.plain(status.get("speed") or ""),
        facts.holds(link, ConditionType.RDMA_USABLE),
        facts.plain(status.get("gbps") or ""),
        cable_problem(link),
        users,
    )
