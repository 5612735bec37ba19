"""One round for one Mac: keeps the operator's part of its NodeProfile up to date."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from weakref import WeakValueDictionary

from thunderfleet_crds.kinds.modeldeployment import Failure
from thunderfleet_crds.kinds.nodeprofile import Quarantine
from thunderfleet_crds.names import API_VERSION, NODEPROFILE_KIND
from thunderfleet_lib.kube import ApiError, Json

from thunderfleet_operator.act.batches import in_batches
from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.decide import mac_usage
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.reader import observe_mac
from thunderfleet_operator.watch.cache import NODEPROFILES

log = logging.getLogger(__name__)


class MacController:
    """``clock`` is UTC now."""

    def __init__(self, index: Index, writer: Writer, clock: Callable[[], datetime]) -> None:
        self._index = index
        self._writer = writer
        self._clock = clock
        self._rounds: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By Mac, the lock that its rounds hold, as long as there are rounds."""

    async def settle(self, nodes: Iterable[str]) -> None:
        """Rounds for several Macs at once: before a group's pods are created there, and after they have gone.

        Each Mac's round depends on no other's. One that fails is raised when the others of its batch have ended.
        """
        for error in await in_batches(self.round, sorted(set(nodes))):
            if error is not None:
                raise error

    async def quarantine(self, failure: Failure, group: str) -> None:
        """Takes the Mac of a failure of class Reboot out of placement until it reboots."""
        started = mac_usage.quarantine_for(self._index.profiles, self._index.nodes, failure, group, self._clock())
        if started is not None and failure.node is not None:
            await self.round(failure.node, started)

    async def round(self, node: str, quarantine: Quarantine | None = None) -> None:
        """Writes which groups have this Mac and whether it is in quarantine, if that has changed.

        Rounds of one Mac run one after the other, also when several rounds of ModelDeployments request them: of two writes at
        the same time, the last one could be that of the round that had read less.
        """
        lock = self._rounds.get(node)
        if lock is None:
            lock = self._rounds[node] = asyncio.Lock()
        async with lock:
            await self._round(node, quarantine)

    async def _round(self, node: str, quarantine: Quarantine | None) -> None:
        observed = observe_mac(self._index, node, self._clock())
        decision = mac_usage.decide(observed, quarantine) if observed is not None else None
        if observed is None or decision is None:
            return
        body: Json = {
            "apiVersion": API_VERSION,
            "kind": NODEPROFILE_KIND,
            "metadata": {"name": node},
            "status": decision.status,
        }
        try:
            await self._writer.apply_status(NODEPROFILES, body)
        except ApiError as error:
            if error.status != 404:
                raise
            return
        if decision.event is not None:
            log.warning("NodeProfile %s: %s", node, decision.event.message)
            self._writer.event(observed.profile, decision.event)
