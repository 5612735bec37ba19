"""One round for one cable: updates the operator's part of its ThunderboltLink, and deletes links of removed cables."""

from collections.abc import Callable
from datetime import datetime

from thunderfleet_crds.names import API_VERSION, THUNDERBOLTLINK_KIND
from thunderfleet_lib.kube import Json

from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.decide import link
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.reader import observe_link
from thunderfleet_operator.watch.cache import LINKS


class LinkController:
    """``clock`` is UTC now; ``first_led`` returns since when the cluster has had an operator, None if that is not known."""

    def __init__(
        self, index: Index, writer: Writer, clock: Callable[[], datetime], first_led: Callable[[], datetime | None]
    ) -> None:
        self._index = index
        self._writer = writer
        self._clock = clock
        self._first_led = first_led

    async def round(self, name: str) -> float | None:
        """Seconds until the next round although nothing may have changed."""
        observed = observe_link(self._index, name, self._clock(), self._first_led())
        if observed is None:
            return None
        decision = link.decide(observed)
        if decision.delete:
            await self._writer.delete(LINKS, None, name, str(observed.link.metadata.uid))
        elif decision.patch:
            await self._writer.patch_status(LINKS, name, list(decision.patch))
        elif decision.status is not None:
            metadata = {"name": name}
            body: Json = {"apiVersion": API_VERSION, "kind": THUNDERBOLTLINK_KIND, "metadata": metadata}
            await self._writer.apply_status(LINKS, {**body, "status": decision.status})
        if decision.event is not None:
            self._writer.event(observed.link, decision.event)
        return decision.recheck_seconds
