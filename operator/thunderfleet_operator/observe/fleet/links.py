"""The cables of each Mac: a table that follows changes of few cables at the cost of these."""

from collections.abc import Mapping

from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink

Links = Mapping[str, ThunderboltLink | None]


class LinksOf:
    """The last table, and the cables that it was made from."""

    def __init__(self) -> None:
        self._links: Links = {}
        self._found: dict[str, tuple[ThunderboltLink, ...]] = {}

    def of(self, links: Links) -> Mapping[str, tuple[ThunderboltLink, ...]]:
        """By Mac, the cables that end there. What was returned before stays as it is."""
        before, self._links = self._links, links
        found: dict[str, tuple[ThunderboltLink, ...]] | None = None
        for name in (*links, *(before.keys() - links.keys())):
            old, new = before.get(name), links.get(name)
            if old is not new:
                found = dict(self._found) if found is None else found
                _replace(found, old, new)
        if found is not None:
            self._found = found
        return self._found


def _replace(found: dict[str, tuple[ThunderboltLink, ...]], old: ThunderboltLink | None, new: ThunderboltLink | None) -> None:
    ends = _ends(new)
    for node in _ends(old):
        links = tuple(new if link is old and node in ends else link for link in found[node])
        kept = tuple(link for link in links if link is not None and link is not old)
        if kept:
            found[node] = kept
        else:
            del found[node]
    for node in ends:
        known = found.get(node, ())
        if new is not None and not any(link is new for link in known):
            found[node] = (*known, new)


def _ends(link: ThunderboltLink | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys((link.spec.a.node, link.spec.b.node))) if link is not None else ()
