"""One round for one cable: its two ends summarised, and what a Node that is gone has left taken out."""

from collections.abc import Callable, Iterator
from datetime import datetime

from thunderfleet_crds.names import API_VERSION, THUNDERBOLTLINK_KIND
from thunderfleet_crds.nodeprofile import NodeProfile
from thunderfleet_crds.thunderboltlink import ThunderboltLink
from thunderfleet_lib.kube import Json

from thunderfleet_operator.act.events import Occurrence
from thunderfleet_operator.act.executor import Actor
from thunderfleet_operator.decide import link as linkstatus
from thunderfleet_operator.observe import snapshot
from thunderfleet_operator.observe.snapshot import Parsed
from thunderfleet_operator.watch.cache import LINKS, NODEPROFILES, NODES, Cache


class Links:
    def __init__(self, cache: Cache, parsed: Parsed, actor: Actor, clock: Callable[[], datetime]) -> None:
        self._cache = cache
        self._parsed = parsed
        self._actor = actor
        self._clock = clock

    async def round(self, name: str) -> float | None:
        """Seconds until the next although nothing may have changed."""
        item = self._cache[LINKS].items.get(name)
        link = self._parsed.get(ThunderboltLink, item) if item else None
        if link is None or link.metadata.deletion_timestamp is not None:
            return None
        gone = linkstatus.gone_ends(link, frozenset(self._cache[NODES].items))
        if len(gone) == 2:
            await self._actor.delete(LINKS, None, name, link.metadata.uid)
            return None
        for node in (*gone, *self._renamed(link)):
            patch = linkstatus.removal(link, node)
            if patch:
                await self._actor.patch_status(LINKS, name, patch)
                return 0.0
        now = self._clock()
        left = linkstatus.lingers(link, now)
        if left == 0:
            text = f"neither {link.spec.a.node} nor {link.spec.b.node} has had this cable for a while: the link is removed"
            await self._actor.delete(LINKS, None, name, link.metadata.uid)
            await self._actor.tell(link, Occurrence("Removed", text))
            return None
        profiles: dict[str, NodeProfile] = {}
        ready: set[str] = set()
        for end in {link.spec.a.node, link.spec.b.node}:
            machine, told = self._cache[NODES].items.get(end), self._cache[NODEPROFILES].items.get(end)
            profile = self._parsed.get(NodeProfile, told) if told else None
            if profile is not None:
                profiles[end] = profile
            if machine is not None and snapshot.is_ready(machine):
                ready.add(end)
        made = linkstatus.summary(link, profiles, now, frozenset(ready))
        if made != linkstatus.current(link):
            body: Json = {"apiVersion": API_VERSION, "kind": THUNDERBOLTLINK_KIND, "metadata": {"name": name}, "status": made}
            await self._actor.apply_status(LINKS, body)
            if news := linkstatus.change(link, made):
                await self._actor.tell(link, Occurrence(news[0], news[1], warning=news[2]))
        return left

    def _renamed(self, link: ThunderboltLink) -> Iterator[str]:
        """Ends whose Node is not Ready while another Ready Node has their very port: the Mac goes by another name now, and what
        it said under the old one is of no cable.
        """
        for end in link.status.endpoints:
            machine, told = self._cache[NODES].items.get(end.node), self._cache[NODEPROFILES].items.get(end.node)
            if machine is None or told is None or snapshot.is_ready(machine):
                continue
            switch = linkstatus.switch_of(self._parsed.get(NodeProfile, told), end.port)
            if switch is None:
                continue
            for name, other in self._cache[NODEPROFILES].items.items():
                node = self._cache[NODES].items.get(name)
                if name != end.node and node is not None and snapshot.is_ready(node):
                    profile = self._parsed.get(NodeProfile, other)
                    if linkstatus.switch_of(profile, end.port) == switch:
                        yield end.node
                        break
