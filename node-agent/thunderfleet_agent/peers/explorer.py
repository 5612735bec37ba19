"""The rounds of dials: reads the profiles that say whom to dial and by which certificate, dials, and keeps the ledger.

Profiles are listed now and then, never watched: a thousand agents that watch a thousand profiles would be a million events.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from thunderfleet_crds.nodeprofile import Agent, NodeProfile, NodeProfileStatus, Reachability
from thunderfleet_crds.thunderboltlink import ThunderboltLinkSpec
from thunderfleet_crds.vocabulary import ReachabilityState
from thunderfleet_lib.kube import ApiError

from thunderfleet_agent.peers import reach
from thunderfleet_agent.peers.dial import DialError, dial
from thunderfleet_agent.peers.reach import Ledger, Outcome, Target
from thunderfleet_agent.publish.publisher import Publisher

log = logging.getLogger(__name__)

AT_ONCE = 8
# Macs that no cable leads to are dialled in one round of so many; whoever is suspect in each.
OTHERS_ROUNDS = 6
# Whoever never answered is dialled in so many rounds at first: Macs that boot together are not all up at once.
FIRST_TRIES = 6
# Who is there is listed soon after the start, then ever more seldom.
FIRST_LIST_SECONDS = 5.0
LIST_SECONDS = 600.0
# A stranger's certificate is looked up at most so often for one name, and so many at one time; one that agreed is believed on.
LOOKUP_SECONDS = 5.0
PIN_SECONDS = 600.0
MAX_LOOKUPS = 4
MAX_PINS = 4096
# What goes into the path of a request, from somebody who is not known yet.
_NODE_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")


class Explorer:
    """What this Mac knows of the other agents. ``dialled`` is told of every round's outcomes."""

    def __init__(
        self,
        publisher: Publisher,
        host_ip: str,
        context: ssl.SSLContext,
        dialled: Callable[[list[Outcome]], None] = lambda outcomes: None,
    ) -> None:
        self._publisher = publisher
        self._host_ip = host_ip
        self._context = context
        self._dialled = dialled
        self._ledger: Ledger | None = None
        self._neighbours: dict[str, NodeProfile] = {}
        self._others: dict[str, NodeProfile] = {}
        self._members: dict[str, NodeProfile] = {}
        self._list_at = 0.0
        self._list_after = FIRST_LIST_SECONDS
        self._rounds = 0
        self._pins: dict[str, tuple[str | None, float]] = {}
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)
        self._tries: dict[tuple[str, str], int] = {}
        self._problems: dict[tuple[str, str], str] = {}

    @property
    def facts(self) -> tuple[Reachability, ...]:
        return self._ledger.facts if self._ledger else ()

    def begin(self, facts: Iterable[Reachability]) -> None:
        """Starts from what an earlier agent of this Mac has published. Only the first call counts."""
        if self._ledger is None:
            self._ledger = Ledger(facts)

    def neighbours(self, profiles: Iterable[NodeProfile]) -> None:
        """The profiles at the other ends of this Mac's cables as they were just read."""
        self._neighbours.update((profile.metadata.name, profile) for profile in profiles)

    @property
    def agents(self) -> dict[str, Agent]:
        """How the agents of the nodes that are known are reached."""
        profiles = {**self._others, **self._neighbours}
        return {name: profile.status.agent for name, profile in profiles.items() if profile.status.agent is not None}

    async def known(self, node: str, sha256: str) -> bool:
        """Whether that node's NodeProfile shows an agent with this certificate. What was read before is believed when it
        agrees; else it is looked up, within limits that strangers cannot exceed.
        """
        seen = self._neighbours.get(node) or self._members.get(node) or self._others.get(node)
        if seen is not None and seen.status.agent is not None and seen.status.agent.certificate_sha256 == sha256:
            return True
        pin = self._pins.get(node)
        age = time.monotonic() - pin[1] if pin else 0.0
        if pin is not None and age < (PIN_SECONDS if pin[0] == sha256 else LOOKUP_SECONDS):
            return pin[0] == sha256
        if self._lookups.locked() or not _NODE_NAME.match(node):
            return False
        async with self._lookups:
            try:
                profile = await self._publisher.profile_of(node)
            except ApiError as error:
                log.warning("cannot look up the certificate of %s: %s", node, error)
                return pin is not None and pin[0] == sha256
        if len(self._pins) >= MAX_PINS:
            self._pins.clear()
        agent = profile.status.agent if profile else None
        self._pins[node] = (agent.certificate_sha256 if agent else None, time.monotonic())
        return self._pins[node][0] == sha256

    async def round(self, own: NodeProfileStatus, links: Iterable[ThunderboltLinkSpec]) -> bool:
        """Dials whoever is due; whether what is to be published has changed."""
        if self._ledger is None:
            return False
        before, node = self.facts, self._publisher.node
        specs = tuple(links)
        await self._read(node, specs)
        wanted = reach.targets(node, own, specs, self._neighbours, self._others.values(), self._members)
        self._ledger.keep(wanted)
        cabled = {end.node for spec in specs for end in (spec.a, spec.b)}
        suspects = {(fact.node, fact.address) for fact in self.facts if fact.state is ReachabilityState.SUSPECT}
        everybody = self._rounds % OTHERS_ROUNDS == 0
        self._rounds += 1
        known = {(fact.node, fact.address) for fact in self.facts}
        self._tries = {target.key: self._tries.get(target.key, 0) + 1 for target in wanted if target.key not in known}
        due = [
            target
            for target in wanted
            if everybody
            or target.node in cabled
            # Addresses of a group's Macs that never answered are not worth a time limit in every round.
            or (target.node in self._members and target.key in known)
            or target.key in suspects
            or self._tries.get(target.key, FIRST_TRIES + 1) <= FIRST_TRIES
        ]
        limit = asyncio.Semaphore(AT_ONCE)
        outcomes = list(await asyncio.gather(*(self._dial(target, own, limit) for target in due)))
        now = datetime.now(UTC)
        for outcome in outcomes:
            self._ledger.record(outcome, now)
            self._tell(outcome)
        self._dialled(outcomes)
        await self._read_again({outcome.target.node for outcome in outcomes if outcome.problem})
        return self.facts != before

    async def _dial(self, target: Target, own: NodeProfileStatus, limit: asyncio.Semaphore) -> Outcome:
        async with limit:
            try:
                answer = await dial(target, self._publisher.node, self._context, reach.source(own, target, self._host_ip))
            except DialError as error:
                return Outcome(target, problem=str(error))
        interface = reach.interface_of(own, answer.local)
        if target.interface is not None and interface != target.interface:
            way = f"went out by {interface or answer.local}, not by {target.interface}: it needs a host route"
            return Outcome(target, problem=f"{target.node} at {target.address}: the connection {way}")
        return Outcome(target, answer.rtt_microseconds, interface)

    def _tell(self, outcome: Outcome) -> None:
        key = outcome.target.key
        if outcome.problem is None:
            if self._problems.pop(key, None):
                log.info("%s at %s answers again", *key)
        elif key not in self._problems:
            log.warning("%s", outcome.problem)
            self._problems[key] = outcome.problem

    async def _read(self, node: str, specs: Iterable[ThunderboltLinkSpec]) -> None:
        """The profiles that are missing, and when it is time the list of the others."""
        ends = {end.node for spec in specs for end in (spec.a, spec.b)} - {node}
        self._neighbours = {name: profile for name, profile in self._neighbours.items() if name in ends}
        members = set(reach.members(node, self._publisher.groups))
        self._members = {name: profile for name, profile in self._members.items() if name in members}
        await self._read_again(ends - set(self._neighbours), self._neighbours)
        await self._read_again(members - set(self._members), self._members)
        if time.monotonic() < self._list_at:
            return
        await self._read_again(self._members)
        self._list_after = min(LIST_SECONDS, self._list_after * 2)
        self._list_at = time.monotonic() + self._list_after * random.uniform(0.9, 1.1)
        try:
            found = await self._publisher.some_profiles()
        except ApiError as error:
            log.warning("cannot list who is there: %s", error)
            return
        fresh = {profile.metadata.name: profile for profile in found}
        if set(fresh) - set(self._others):
            self._rounds = 0
        self._others = fresh
        live = {(name, fact.address) for name in fresh for fact in self.facts if fact.node == name}
        self._problems = {key: text for key, text in self._problems.items() if key[0] in fresh or key in live}

    async def _read_again(self, nodes: Iterable[str], into: dict[str, NodeProfile] | None = None) -> None:
        """Whoever did not answer may have a new address or certificate; whoever is new to ``into`` goes there."""
        for name in sorted(nodes):
            try:
                profile = await self._publisher.profile_of(name)
            except ApiError:
                return
            for known in (self._neighbours, self._members, self._others):
                if profile is None:
                    known.pop(name, None)
                elif name in known or known is into:
                    known[name] = profile
