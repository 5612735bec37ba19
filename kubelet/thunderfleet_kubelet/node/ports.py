"""Keeps this Mac's Thunderbolt ports out of bridges, each with a network service and an address of its own.

``thunderfleet_lib.macnet`` decides the next step. This module keeps time: whether the API server answers, for how long, and
when to check again. On a Mac whose only network is a cable, the port has to leave the bridge before the Mac has any address. So
this also runs without an API server, while the kubelet waits for an address.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Final, Literal

from thunderfleet_crds.names import API_VERSION, FIELDS_END, THUNDERBOLTLINK_PLURAL, end_label
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.host.hostcmd import BlockingHost
from thunderfleet_lib.kube import ApiError, Json, Kube
from thunderfleet_lib.kube.fields import with_value
from thunderfleet_lib.macnet.decide import Goal
from thunderfleet_lib.macnet.keeper import Keeper, Round
from thunderfleet_lib.macnet.observe import Unreadable
from thunderfleet_lib.macnet.subnets import cable_address
from thunderfleet_lib.macnet.switch import Reach
from thunderfleet_lib.macnet.values import FILE_NAME

log = logging.getLogger(__name__)

LINKS: Final = f"/apis/{API_VERSION}/{THUNDERBOLTLINK_PLURAL}"
POLL_SECONDS: Final = 20.0
WORK_SECONDS: Final = 1.0
"""The pause between steps, and between checks while a switch is on trial."""
WAIT_SECONDS: Final = 3.0
"""The pause while waiting for a cable or the API server."""
PROBE_SECONDS: Final = 3.0
CABLE_SECONDS: Final = 60.0
"""How long ports stay in their bridge until their cables are known, so that addresses do not change under groups later."""
NOT_SEPARATED: Final = "ThunderboltPortsNotSeparated"
RETRY: Final = Backoff(first=2.0, limit=120.0)

Report = Callable[[str, str, Literal["Normal", "Warning"]], None]
"""Reports an Event of the Node: reason, message, type."""


@dataclass(frozen=True)
class Wanted:
    """The configuration. ``server``: returns the currently known host of the API server."""

    node: str
    server: Callable[[], str]
    managed: bool
    network: IPv4Network


def cable_addresses(links: list[Json], node: str, network: IPv4Network) -> Mapping[str, IPv4Interface]:
    """The addresses of this Mac's ports, from its ThunderboltLinks.

    A link counts if the agent of this Mac reports its end of it: agents of other Macs can create links too. Of several links
    at one port, the first by name that this Mac's agent reports counts.
    """
    found: dict[str, tuple[bool, str, IPv4Interface]] = {}
    for link in links:
        reports = (link.get("status") or {}).get("endpoints") or ()
        report = next((one for one in reports if one.get("node") == node), None)
        if report is None or link["metadata"].get("deletionTimestamp"):
            continue
        ends = [(str(link["spec"][end]["node"]), int(link["spec"][end]["port"])) for end in ("a", "b")]
        for own, other in (ends, ends[::-1]):
            if own == (node, report.get("port")) and own != other:
                rank = (not report.get("seesPeer"), str(link["metadata"]["name"]), cable_address(network, own, other))
                port = f"Thunderbolt {own[1]}"
                found[port] = min(rank, found.get(port, rank))
    return {port: address for port, (_, _, address) in found.items()}


class ThunderboltPorts:
    """``folder``: the kubelet's. ``clock``: seconds that only grow."""

    def __init__(
        self,
        wanted: Wanted,
        host: BlockingHost,
        folder: Path,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._wanted = wanted
        self._kube: Callable[[], Kube] | None = None
        self._report: Report = self._keep_event
        self._events: dict[str, tuple[str, Literal["Normal", "Warning"]]] = {}
        """Events from before there was an API server, by reason."""
        self._clock, self._sleep = clock, sleep
        self._keeper = Keeper(host.run, folder / FILE_NAME)
        self._addresses: Mapping[str, IPv4Interface] = {}
        self._reported = self._waiting = ""
        self._failures = 0
        self._began = self._trial_since = clock()
        self._changed = clock()
        """Since when the API server answers, or does not."""
        self._answers = False

    def attach(self, kube: Callable[[], Kube], report: Report) -> None:
        """Uses the API server from now on. ``kube``: returns the current client."""
        self._kube, self._report = kube, report
        self._began = self._clock()
        # What is still wrong is reported by the next round.
        self._reported = ""
        self._events.pop(NOT_SEPARATED, None)

    def _keep_event(self, reason: str, message: str, kind: Literal["Normal", "Warning"]) -> None:
        self._events[reason] = (message, kind)

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Runs until cancelled, until ``until`` is set, or until all changes of unmanaged ports are undone."""
        if os.geteuid() != 0:
            log.info("the Thunderbolt ports are left as they are: only root can change network services")
            return
        if self._keeper.problem:
            log.warning("%s; ports that it lists are not put back into their bridges", self._keeper.problem)
        for reason in list(self._events) if self._kube is not None else ():
            self._report(reason, *self._events.pop(reason))
        while not (until is not None and until.is_set()) and not await self._turn():
            pass

    async def _turn(self) -> bool:
        """One round and the pause after it. Returns whether no work can ever follow."""
        delay = POLL_SECONDS
        try:
            goal, reach = await self._goal(), await self._reach()
            done = await asyncio.to_thread(self._keeper.round, goal, reach)
            delay = self._delay(done)
            self._tell(done)
            if not self._wanted.managed and not done.decision.commands:
                return True
        except Unreadable as error:
            self._failures += 1
            delay = WORK_SECONDS if self._keeper.record.trial else RETRY.seconds(self._failures)
            log.warning("cannot read the network settings: %s; retrying in %.0f s", error, delay)
        except OSError as error:
            self._failures += 1
            delay = RETRY.seconds(self._failures)
            log.warning("the Thunderbolt ports stay as they are: the record of the changes cannot be written: %s", error)
        await self._sleep(delay)
        return False

    async def _goal(self) -> Goal:
        wanted = self._wanted
        server = await asyncio.to_thread(wanted.server)
        if not wanted.managed or self._kube is None:
            return Goal(server, managed=wanted.managed)
        try:
            links = await with_value(self._kube(), LINKS, FIELDS_END, wanted.node, end_label(wanted.node))
            self._addresses = cable_addresses(links, wanted.node, wanted.network)
        except (ApiError, LookupError, TypeError, ValueError) as error:
            log.debug("cannot read the cables of this Mac: %s", error)
        ports = self._keeper.ports if self._clock() - self._began < CABLE_SECONDS else ()
        waiting = frozenset(name for name in ports if name not in self._addresses)
        return Goal(server, addresses=self._addresses, waiting=waiting)

    async def _reach(self) -> Reach:
        """Checks whether the API server answers, if the next step depends on it."""
        now = self._clock()
        if not self._keeper.record.trial:
            self._trial_since = now
        if not self._wanted.managed or not self._keeper.undecided:
            return Reach(answers=True)
        answers = await self._answer()
        now = self._clock()
        if answers != self._answers:
            self._answers, self._changed = answers, now
        if not answers and self._keeper.record.trial and self._kube is not None:
            # An old connection may hang although a new one would work.
            await self._kube().reconnect()
        lasted = now - max(self._changed, self._trial_since)
        return Reach(answers, lasted if answers else 0.0, 0.0 if answers else lasted, now - self._trial_since)

    async def _answer(self) -> bool:
        if self._kube is None:
            return False
        try:
            await self._kube().request("GET", "/version", seconds=PROBE_SECONDS)
        except ApiError as error:
            # A refusal is an answer too.
            return error.status != 0
        return True

    def _delay(self, done: Round) -> float:
        """Seconds until the next round."""
        self._failures = self._failures + 1 if done.failures else 0
        if self._keeper.record.trial:
            return WORK_SECONDS
        if done.failures:
            return RETRY.seconds(self._failures)
        if done.decision.commands or done.decision.outcome or self._kube is None:
            # Until there is an API server, everything waits for an address.
            return WORK_SECONDS
        return WAIT_SECONDS if done.decision.waiting else POLL_SECONDS

    def _tell(self, done: Round) -> None:
        decision = done.decision
        if decision.note:
            log.info("%s", decision.note)
        for failure in done.failures:
            log.warning("%s", failure)
        if decision.outcome == "Confirmed":
            ports = ", ".join(self._keeper.record.members)
            text = f"{ports} left the Thunderbolt Bridge: each Thunderbolt port has a network service of its own"
            self._report("ThunderboltPortsSeparated", text, "Normal")
        elif decision.outcome == "Undone":
            self._report("ThunderboltPortsRestored", decision.note, "Warning" if self._keeper.record.refused else "Normal")
        if decision.waiting and decision.waiting != self._waiting:
            log.info("%s", decision.waiting)
        self._waiting = decision.waiting
        problem = decision.problem or next(iter(done.failures), "")
        if problem != self._reported:
            self._reported = problem
            if problem:
                log.warning("%s", problem)
                self._report(NOT_SEPARATED, problem, "Warning")
