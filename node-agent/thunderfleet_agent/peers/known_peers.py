"""Decides whether a certificate belongs to the agent of a node, by the digest in that node's NodeProfile.

Anybody can open a connection and claim any name, so a connection must not cost the API server much. Profiles that the agent
reads anyway are consulted first. Anything else is a lookup, limited in three ways: one name is looked up at most every
LOOKUP_SECONDS, unknown names share a small token bucket and half of the concurrent lookups, and names that are known
(neighbors, group members, the fleet sample, and peers that were accepted before) have a bucket of their own, so that a flood
of unknown names does not delay a peer whose certificate was renewed.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from thunderfleet_crds.kinds.nodeprofile import Agent, NodeProfile
from thunderfleet_lib.kube import ApiError

from thunderfleet_agent.peers.token_bucket import TokenBucket

log = logging.getLogger(__name__)

# A lookup that contradicts the certificate is repeated after this time; one that matches is valid for the longer time.
LOOKUP_SECONDS = 5.0
PIN_SECONDS = 600.0
MAX_PINS = 4096
# Lookups per second and at once. A Mac that boots with its fleet is dialled by about SAMPLE_SIZE Macs whose profiles it has not
# read.
STRANGER_RATE, STRANGER_BURST, MAX_STRANGER_LOOKUPS = 2.0, 20, 2
KNOWN_RATE, KNOWN_BURST, MAX_LOOKUPS = 10.0, 40, 4
# The name becomes part of a request's path.
_NODE_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")


@dataclass(frozen=True)
class Pin:
    """The digest in a node's profile when it was read; None if it showed no agent. ``read_at`` is in monotonic seconds."""

    sha256: str | None
    read_at: float
    accepted: bool

    def fresh(self, sha256: str, now: float) -> bool:
        """Whether the pin is still valid for this certificate."""
        return now - self.read_at < (PIN_SECONDS if self.sha256 == sha256 else LOOKUP_SECONDS)


class KnownPeers:
    """``agent_of`` gives the agent of a node whose profile was read already; ``profile_of`` reads one (raises ApiError)."""

    def __init__(
        self,
        agent_of: Callable[[str], Agent | None],
        profile_of: Callable[[str], Awaitable[NodeProfile | None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent_of = agent_of
        self._profile_of = profile_of
        self._clock = clock
        self._pins: dict[str, Pin] = {}
        self._strangers = TokenBucket(STRANGER_RATE, STRANGER_BURST)
        self._known = TokenBucket(KNOWN_RATE, KNOWN_BURST)
        self._lookups = 0

    async def accepts(self, node: str, sha256: str) -> bool:
        """Whether that node's NodeProfile shows an agent with this certificate. False if no lookup is allowed now."""
        agent, pin, now = self._agent_of(node), self._pins.get(node), self._clock()
        if agent is not None and agent.certificate_sha256 == sha256:
            return True
        if pin is not None and pin.fresh(sha256, now):
            return pin.sha256 == sha256
        known = agent is not None or (pin is not None and pin.accepted)
        if not _NODE_NAME.match(node) or not self._may_look_up(known, now):
            return False
        self._lookups += 1
        try:
            profile = await self._profile_of(node)
        except ApiError as error:
            log.warning("cannot look up the certificate of %s: %s", node, error)
            return pin is not None and pin.sha256 == sha256
        finally:
            self._lookups -= 1
        return self._pin(node, profile, sha256).sha256 == sha256

    def _may_look_up(self, known: bool, now: float) -> bool:
        if known:
            return self._lookups < MAX_LOOKUPS and self._known.take(now)
        return self._lookups < MAX_STRANGER_LOOKUPS and self._strangers.take(now)

    def _pin(self, node: str, profile: NodeProfile | None, shown: str) -> Pin:
        """Stores what a profile shows. When the table is full, pins that never matched are dropped first."""
        if len(self._pins) >= MAX_PINS:
            self._pins = {name: pin for name, pin in self._pins.items() if pin.accepted}
        if len(self._pins) >= MAX_PINS:
            self._pins.clear()
        agent = profile.status.agent if profile else None
        digest = agent.certificate_sha256 if agent else None
        before = self._pins.get(node)
        accepted = digest == shown or (before is not None and before.accepted)
        pin = self._pins[node] = Pin(digest, self._clock(), accepted)
        return pin
