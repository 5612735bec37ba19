"""Rounds of dials to other agents: reads the profiles with the addresses to dial, dials, and records reachability.

Profiles are listed periodically, never watched: a thousand agents that watch a thousand profiles would be a million events.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from thunderfleet_crds.kinds.nodeprofile import Agent, NodeProfile, NodeProfileStatus, Reachability
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLinkSpec
from thunderfleet_crds.vocabulary import ReachabilityState
from thunderfleet_lib.kube import ApiError

from thunderfleet_agent.peers import dial_plan
from thunderfleet_agent.peers.dial import DialError, dial
from thunderfleet_agent.peers.dial_plan import PeerAddress
from thunderfleet_agent.peers.reachability import DialOutcome, ReachabilityTable
from thunderfleet_agent.publish.publisher import Publisher

log = logging.getLogger(__name__)

CONCURRENT_DIALS = 8
# A Mac without a cable to this one is dialled every this many rounds; a suspect address in every round.
OTHERS_ROUNDS = 6
# An address that never answered is dialled in each of the first rounds: Macs that boot together are not all up at once.
FIRST_TRIES = 6
# The fleet is listed soon after the start, then less and less often.
FIRST_LIST_SECONDS = 5.0
LIST_SECONDS = 600.0
# The profile of a Mac that dials from an address which its profile does not show is read at most this often.
GREETED_SECONDS = 10.0


class DialRounds:
    """This Mac's view of the other agents. ``dialled`` receives the outcomes of every round."""

    def __init__(
        self,
        publisher: Publisher,
        host_ip: str,
        context: ssl.SSLContext,
        dialled: Callable[[list[DialOutcome]], None] = lambda outcomes: None,
    ) -> None:
        self._publisher = publisher
        self.host_ip = host_ip
        """This Mac's address; set a new one when it changes."""
        self._context = context
        self._dialled = dialled
        self._table: ReachabilityTable | None = None
        self._neighbors: dict[str, NodeProfile] = {}
        self._others: dict[str, NodeProfile] = {}
        self._members: dict[str, NodeProfile] = {}
        self._list_at = 0.0
        self._list_after = FIRST_LIST_SECONDS
        self._rounds = 0
        self._tries: dict[tuple[str, str], int] = {}
        self._problems: dict[tuple[str, str], str] = {}
        self._greeted: dict[str, float] = {}
        """When a known Mac last dialled from an unknown address (monotonic); no more entries than known Macs."""
        self._moved: set[str] = set()
        """Those of them whose profiles are still to be read."""
        self.wake: Callable[[], None] = lambda: None
        """Starts a round soon."""

    @property
    def facts(self) -> tuple[Reachability, ...]:
        return self._table.facts if self._table else ()

    def begin(self, facts: Iterable[Reachability]) -> None:
        """Starts from the facts that an earlier agent of this Mac published. Only the first call has an effect."""
        if self._table is None:
            self._table = ReachabilityTable(facts)

    def neighbors(self, profiles: Iterable[NodeProfile]) -> None:
        """Takes the profiles at the other ends of this Mac's cables, as just read."""
        self._neighbors.update((profile.metadata.name, profile) for profile in profiles)

    @property
    def agents(self) -> dict[str, Agent]:
        """The agents of the known nodes."""
        profiles = {**self._others, **self._neighbors}
        return {name: profile.status.agent for name, profile in profiles.items() if profile.status.agent is not None}

    def agent_of(self, node: str) -> Agent | None:
        """The agent of a node whose profile is known."""
        seen = self._neighbors.get(node) or self._members.get(node) or self._others.get(node)
        return seen.status.agent if seen is not None else None

    def knows(self, address: str) -> bool:
        """Whether a node whose profile is known has this address."""
        return any(
            address in dial_plan.addresses(profile)
            for profiles in (self._neighbors, self._members, self._others)
            for profile in profiles.values()
        )

    def greeted(self, node: str, address: str) -> None:
        """An agent that proved to be that of ``node`` has dialled from ``address``: the Mac may have got another one."""
        now = time.monotonic()
        known = [profiles[node] for profiles in (self._neighbors, self._members, self._others) if node in profiles]
        if not known or any(address in dial_plan.addresses(profile) for profile in known):
            return
        if now - self._greeted.get(node, -GREETED_SECONDS) < GREETED_SECONDS:
            return
        self._greeted[node] = now
        self._moved.add(node)
        self.wake()

    async def round(self, own: NodeProfileStatus, links: Iterable[ThunderboltLinkSpec]) -> bool:
        """Dials every address that is due. Returns whether the facts changed."""
        if self._table is None:
            return False
        before, node = self.facts, self._publisher.node
        specs = tuple(links)
        await self._read(node, specs)
        wanted = dial_plan.targets(node, own, specs, self._neighbors, self._others.values(), self._members)
        self._table.keep(wanted)
        cabled = {end.node for spec in specs for end in (spec.a, spec.b)}
        suspects = {(fact.node, fact.address) for fact in self.facts if fact.state is ReachabilityState.SUSPECT}
        all_others = self._rounds % OTHERS_ROUNDS == 0
        self._rounds += 1
        known = {(fact.node, fact.address) for fact in self.facts if fact.state is not ReachabilityState.UNREACHABLE}
        self._tries = {target.key: self._tries.get(target.key, 0) + 1 for target in wanted if target.key not in known}
        due = [
            target
            for target in wanted
            if all_others
            or target.node in cabled
            # An address of a group member that never answered would cost a time-out in every round.
            or (target.node in self._members and target.key in known)
            or target.key in suspects
            or self._tries.get(target.key, FIRST_TRIES + 1) <= FIRST_TRIES
        ]
        outcomes = await self._dial_all(self._table, due, own)
        failed = {outcome.target.node for outcome in outcomes if outcome.problem}
        await self._read_again(failed)
        # A Mac with another address is dialled there at once.
        seen = {target.key for target in wanted}
        wanted = dial_plan.targets(node, own, specs, self._neighbors, self._others.values(), self._members)
        new = [target for target in wanted if target.node in failed and target.key not in seen]
        if new:
            self._table.keep(wanted)
            await self._dial_all(self._table, new, own)
        return self.facts != before

    async def _dial_all(
        self, table: ReachabilityTable, targets: Iterable[PeerAddress], own: NodeProfileStatus
    ) -> list[DialOutcome]:
        limit = asyncio.Semaphore(CONCURRENT_DIALS)
        outcomes = list(await asyncio.gather(*(self._dial(target, own, limit) for target in targets)))
        now = datetime.now(UTC)
        for outcome in outcomes:
            table.record(outcome, now)
            self._log(outcome)
        self._dialled(outcomes)
        return outcomes

    async def _dial(self, target: PeerAddress, own: NodeProfileStatus, limit: asyncio.Semaphore) -> DialOutcome:
        async with limit:
            try:
                answer = await dial(target, self._publisher.node, self._context, dial_plan.source(own, target, self.host_ip))
            except DialError as error:
                return DialOutcome(target, problem=str(error))
        interface = dial_plan.interface_of(own, answer.local)
        if target.interface is not None and interface != target.interface:
            family = "-inet6 " if ":" in target.address else ""
            route = f"sudo route add {family}-host {target.address} -interface {target.interface}"
            way = f"used {interface or answer.local} instead of {target.interface}: run `{route}`, which lasts until a reboot"
            return DialOutcome(target, problem=f"{target.node} at {target.address}: the connection {way}")
        return DialOutcome(target, answer.rtt_microseconds, interface)

    def _log(self, outcome: DialOutcome) -> None:
        key = outcome.target.key
        if outcome.problem is None:
            if self._problems.pop(key, None):
                log.info("%s at %s responds again", *key)
        elif key not in self._problems:
            log.warning("%s", outcome.problem)
            self._problems[key] = outcome.problem

    async def _read(self, node: str, specs: Iterable[ThunderboltLinkSpec]) -> None:
        """Reads the profiles that are missing, and from time to time the sample of the fleet."""
        ends = {end.node for spec in specs for end in (spec.a, spec.b)} - {node}
        self._neighbors = {name: profile for name, profile in self._neighbors.items() if name in ends}
        members = set(dial_plan.members(node, self._publisher.groups))
        self._members = {name: profile for name, profile in self._members.items() if name in members}
        await self._read_again(ends - set(self._neighbors), self._neighbors)
        await self._read_again(members - set(self._members), self._members)
        moved, self._moved = self._moved, set()
        await self._read_again(moved)
        self._greeted = {name: when for name, when in self._greeted.items() if self._is_known(name)}
        if time.monotonic() < self._list_at:
            return
        await self._read_again(self._members)
        self._list_after = min(LIST_SECONDS, self._list_after * 2)
        self._list_at = time.monotonic() + self._list_after * random.uniform(0.9, 1.1)
        try:
            found = await self._publisher.some_profiles()
        except ApiError as error:
            log.warning("cannot list the NodeProfiles: %s", error)
            return
        fresh = {profile.metadata.name: profile for profile in found}
        if set(fresh) - set(self._others):
            self._rounds = 0
        self._others = fresh
        live = {(name, fact.address) for name in fresh for fact in self.facts if fact.node == name}
        self._problems = {key: text for key, text in self._problems.items() if key[0] in fresh or key in live}

    def _is_known(self, node: str) -> bool:
        return any(node in profiles for profiles in (self._neighbors, self._members, self._others))

    async def _read_again(self, nodes: Iterable[str], into: dict[str, NodeProfile] | None = None) -> None:
        """Reads these nodes' profiles: a peer that did not answer may have a new address or certificate.

        A node that is in none of the tables is added to ``into``.
        """
        for name in sorted(nodes):
            try:
                profile = await self._publisher.profile_of(name)
            except ApiError:
                return
            for known in (self._neighbors, self._members, self._others):
                if profile is None:
                    known.pop(name, None)
                elif name in known or known is into:
                    known[name] = profile
