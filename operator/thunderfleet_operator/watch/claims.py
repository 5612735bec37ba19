"""Which ThunderboltLinks are kept. The agent of a Mac may create links of any of its ports to any port of every other Mac.

A Mac has at most MAX_PORTS ports with MAX_PEERS peers each, and two Macs at most as many cables between them as one has ports.
Of more links, those are kept that the Mac itself reports, or both Macs do, so that no other Mac can replace them, and then the
first by name. A link that is not kept costs nothing more, and is deleted if it is not kept for long (``lists``).
"""

import logging
from collections.abc import Iterable

from thunderfleet_crds.kinds.nodeprofile import MAX_PEERS, MAX_PORTS
from thunderfleet_lib.kube import Json, key_of

log = logging.getLogger(__name__)

LINKS_OF_MAC = MAX_PORTS * MAX_PEERS
"""Links of one Mac that are kept."""
LINKS_OF_TWO = MAX_PORTS
"""Links between two Macs that are kept."""

_Macs = tuple[str, ...]
"""One Mac, or the two at the ends of a link."""
_Rank = tuple[int, str]
"""Sort key of links, the last of which is replaced first: how many of these Macs do not report it, and its name."""


class Claims:
    """The links that are kept, by their ends."""

    def __init__(self) -> None:
        self._of: dict[_Macs, dict[str, _Rank]] = {}
        self._ends: dict[str, tuple[_Macs, ...]] = {}
        self.exceeded: set[_Macs] = set()
        """Macs with more links than are kept, since the last list."""

    def take(self, link: Json) -> Iterable[str] | None:
        """Keeps a link; the names of those that it replaces. None if the link is not kept."""
        name = key_of(link)
        a, b = (str(link["spec"][end]["node"]) for end in ("a", "b"))
        reporters = {end.get("node") for end in (link.get("status") or {}).get("endpoints") or ()}
        ranks: dict[_Macs, _Rank] = {macs: (len(set(macs) - reporters), name) for macs in ((a,), (b,), (a, b))}
        self.drop(name)
        replaced = []
        for macs, rank in ranks.items():
            known = self._of.get(macs, {})
            if len(known) < (LINKS_OF_MAC if len(macs) == 1 else LINKS_OF_TWO):
                continue
            last = max(*known.values(), rank)
            self._exceed(macs, last[1])
            if last == rank:
                return None
            replaced.append(last[1])
        for other in replaced:
            self.drop(other)
        self._ends[name] = tuple(ranks)
        for macs, rank in ranks.items():
            self._of.setdefault(macs, {})[name] = rank
        return replaced

    def drop(self, name: str) -> None:
        """Forgets a link that is gone."""
        for macs in self._ends.pop(name, ()):
            del self._of[macs][name]
            if not self._of[macs]:
                del self._of[macs]

    def _exceed(self, macs: _Macs, name: str) -> None:
        if macs not in self.exceeded:
            self.exceeded.add(macs)
            log.warning(
                "%s more ThunderboltLinks than Macs have ports; some, such as %s, do not count and will be deleted: find the "
                "Mac whose agent creates them",
                f"Mac {macs[0]} has" if len(macs) == 1 else f"Macs {' and '.join(macs)} have",
                name,
            )
