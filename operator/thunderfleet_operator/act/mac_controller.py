"""One round for one Mac, and a deployment's claim to its Macs: the operator's part of a NodeProfile is made true.

Everything that the operator says there goes out in one apply, so what is not said any more goes by itself.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime

from thunderfleet_crds.modeldeployment import Failure
from thunderfleet_crds.names import API_VERSION, NODEPROFILE_KIND
from thunderfleet_crds.nodeprofile import Quarantine
from thunderfleet_lib.kube import ApiError, Json

from thunderfleet_operator.act import events
from thunderfleet_operator.act.executor import Actor
from thunderfleet_operator.decide import mac_usage
from thunderfleet_operator.observe.snapshot import Parsed
from thunderfleet_operator.watch.cache import NODEPROFILES, Cache

log = logging.getLogger(__name__)


class Macs:
    def __init__(self, cache: Cache, parsed: Parsed, actor: Actor, clock: Callable[[], datetime]) -> None:
        self._cache = cache
        self._parsed = parsed
        self._actor = actor
        self._clock = clock
        self._ground = mac_usage.Ground(cache)

    async def settle(self, nodes: Iterable[str]) -> None:
        """Rounds for several Macs: before a group's pods are made there, and after they have gone."""
        for node in sorted(set(nodes)):
            await self.round(node)

    async def round(self, node: str) -> None:
        """Writes which groups have this Mac and whether it is in quarantine, if that has changed."""
        profile = mac_usage.known(self._cache, self._parsed, node)
        if profile is not None:
            await self._write(node, mac_usage.standing(profile, mac_usage.boot_id(self._cache, node)))

    async def quarantine(self, failure: Failure, group: str) -> None:
        """Takes the Mac of a failure of class Reboot out of placement, until it has booted anew."""
        profile = mac_usage.known(self._cache, self._parsed, failure.node) if failure.node else None
        boot = mac_usage.boot_id(self._cache, failure.node) if failure.node else None
        if profile is None or boot is None or not mac_usage.wants_quarantine(profile, failure, boot):
            return
        await self._write(profile.metadata.name, mac_usage.quarantine(failure, group, boot, self._clock()))

    async def _write(self, node: str, held: Quarantine | None) -> None:
        profile = mac_usage.known(self._cache, self._parsed, node)
        if profile is None or profile.metadata.deletion_timestamp is not None:
            return
        groups = mac_usage.uses(self._cache, self._parsed, self._ground, node)
        made = mac_usage.wanted(profile, groups, held, self._clock())
        if made == mac_usage.current(profile):
            return
        body: Json = {"apiVersion": API_VERSION, "kind": NODEPROFILE_KIND, "metadata": {"name": node}, "status": made}
        try:
            await self._actor.apply_status(NODEPROFILES, body)
        except ApiError as error:
            if error.status != 404:
                raise
            return
        before = profile.status.quarantine
        if (held is None) != (before is None):
            text = next(c["message"] for c in made["conditions"])
            log.warning("NodeProfile %s: %s", node, text)
            occurrence = events.Occurrence("Quarantined" if held else "Rebooted", text, warning=held is not None)
            await self._actor.tell(profile, occurrence)
