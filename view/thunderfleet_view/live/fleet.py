"""The Macs, cables and models of the page, kept current object by object. Pure.

An entity is what the page shows of one Mac, cable or model, as a JSON object with an ``id``. One changed object changes few
entities: its own, and those of objects that it names. So the work for a change does not grow with the fleet.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from thunderfleet_crds.vocabulary import ConditionType, CopyPhase, GroupPhase

from thunderfleet_view import facts
from thunderfleet_view.facts import Json
from thunderfleet_view.health import Health, of_condition
from thunderfleet_view.problems import cable_problem, deployment_problem, problem_of_mac

Entity = dict[str, Any]

MAX_TEXT: Final = 400
"""Characters of a message on the page; the details have all of it."""
ENDED: Final = frozenset((CopyPhase.COMPLETE, CopyPhase.PART))
"""Phases of a copy whose Mac has all files that it needs."""


class Kind(StrEnum):
    """The kinds of objects that the page shows."""

    NODES = "nodes"
    PROFILES = "profiles"
    LINKS = "links"
    DEPLOYMENTS = "deployments"


def mac_id(name: str) -> str:
    """The id of a Mac's entity."""
    return f"mac/{name}"


def cable_id(name: str) -> str:
    """The id of a cable's entity."""
    return f"cable/{name}"


def model_id(full_name: str) -> str:
    """The id of a ModelDeployment's entity."""
    return f"model/{full_name}"


@dataclass
class Fleet:
    """The objects of a cluster, and the page's entities for them.

    ``put`` takes a new version of an object (None: deleted) and returns the ids of the entities that changed; ``entity`` is the
    current content of one of them (None: gone).
    """

    objects: Mapping[Kind, dict[str, Json]] = field(default_factory=lambda: {kind: {} for kind in Kind})
    entities: dict[str, Entity] = field(default_factory=dict)
    _ranks: dict[str, dict[str, list[Entity]]] = field(default_factory=dict)
    """Ranks of each Mac, by ModelDeployment."""
    _users: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """Names of the groups that use each cable, by the Mac that reports them."""
    _silent: Mapping[str, str] = field(default_factory=dict)

    def put(self, kind: Kind, key: str, item: Json | None) -> set[str]:
        """Stores a new version of an object. Returns the ids of changed entities."""
        old = self.objects[kind].get(key)
        if item is None:
            self.objects[kind].pop(key, None)
        else:
            self.objects[kind][key] = item
        concerned = self._concerned(kind, key, old, item)
        return {one for one in concerned if self._refresh(one)}

    def silence(self, silent: Mapping[str, str]) -> set[str]:
        """Stores problems of the Macs' programs by Node (see ``silent_macs``). Returns the ids of changed entities."""
        before, self._silent = self._silent, silent
        changed = (name for name in before.keys() | silent.keys() if before.get(name) != silent.get(name))
        return {one for one in map(mac_id, changed) if self._refresh(one)}

    def entity(self, entity_id: str) -> Entity | None:
        """The entity with this id; None if there is none."""
        return self.entities.get(entity_id)

    def _concerned(self, kind: Kind, key: str, old: Json | None, new: Json | None) -> set[str]:
        if kind is Kind.LINKS:
            return {cable_id(key)}
        if kind is Kind.DEPLOYMENTS:
            return {model_id(key)} | {mac_id(name) for name in self._place(key, new)}
        if kind is Kind.PROFILES:
            return {mac_id(key)} | {cable_id(name) for name in self._use(key, old, new)}
        return {mac_id(key)}

    def _place(self, key: str, new: Json | None) -> set[str]:
        """Notes where the ranks of a ModelDeployment are. Returns the Macs that had or have one."""
        had = {name for name, by_key in self._ranks.items() if by_key.pop(key, None)}
        has = set[str]()
        for group, rank in _ranks(new):
            name = facts.plain(rank.get("node") or "")
            entry = {
                "group": group,
                "rank": int(rank.get("rank") or 0),
                "state": facts.plain(rank.get("state") or ""),
                "bytes": int(rank.get("memoryBytes") or 0),
            }
            self._ranks.setdefault(name, {}).setdefault(key, []).append(entry)
            has.add(name)
        for name in had - has:
            if not self._ranks[name]:
                del self._ranks[name]
        return had | has

    def _use(self, key: str, old: Json | None, new: Json | None) -> set[str]:
        """Notes which cables the groups of a Mac use. Returns the cables that they used or use."""
        before, after = _uses(old), _uses(new)
        for name in before.keys() - after.keys():
            users = self._users.get(name, {})
            users.pop(key, None)
            if not users:
                self._users.pop(name, None)
        for name, groups in after.items():
            self._users.setdefault(name, {})[key] = groups
        return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

    def _refresh(self, entity_id: str) -> bool:
        """Updates an entity. Returns whether it changed."""
        sort, _, key = entity_id.partition("/")
        new = {"mac": self._mac, "cable": self._cable, "model": self._model}[sort](key)
        old = self.entities.get(entity_id)
        if new is None:
            self.entities.pop(entity_id, None)
        else:
            self.entities[entity_id] = new
        return new != old

    def _mac(self, name: str) -> Entity | None:
        node = self.objects[Kind.NODES].get(name)
        if node is None or facts.is_linux(node):
            return None
        profile = self.objects[Kind.PROFILES].get(name)
        hardware = facts.status(profile or {}).get("hardware") or {}
        problem, ready = problem_of_mac(node, profile, self._silent), facts.holds(node, "Ready")
        found = (rank for ranks in self._ranks.get(name, {}).values() for rank in ranks)
        ranks = sorted(found, key=lambda rank: (rank["group"], rank["rank"]))
        return {
            "id": mac_id(name),
            "name": name,
            "health": _health(bad=not ready, doubtful=bool(problem), used=bool(ranks)),
            "chip": facts.plain(hardware.get("chip") or "").removeprefix("Apple "),
            "memory": _count(hardware.get("memoryBytes")),
            "gpuLimit": _count(hardware.get("gpuMemoryLimitBytes")),
            "gpuReserved": sum(rank["bytes"] for rank in ranks),
            "ranks": [{word: rank[word] for word in ("group", "rank", "state")} for rank in ranks],
            "problem": _short(problem),
        }

    def _cable(self, name: str) -> Entity | None:
        link = self.objects[Kind.LINKS].get(name)
        if link is None:
            return None
        status, connected, problem = facts.status(link), facts.holds(link, ConditionType.CONNECTED), cable_problem(link)
        users = sorted({group for groups in self._users.get(name, {}).values() for group in groups})
        known = ConditionType.CONNECTED in facts.conditions(link)
        return {
            "id": cable_id(name),
            "name": name,
            "health": _health(bad=known and not connected, doubtful=bool(problem), used=bool(users)),
            "ends": [[facts.plain(end["node"]), int(end["port"])] for end in (link["spec"]["a"], link["spec"]["b"])],
            "connected": connected,
            "rdma": facts.holds(link, ConditionType.RDMA_USABLE),
            "speed": facts.plain(status.get("speed") or ""),
            "gbps": facts.plain(status.get("gbps") or ""),
            "rtt": facts.plain(status.get("rtt") or ""),
            "users": users,
            "problem": _short(problem),
        }

    def _model(self, key: str) -> Entity | None:
        deployment = self.objects[Kind.DEPLOYMENTS].get(key)
        if deployment is None:
            return None
        status, problem = facts.status(deployment), deployment_problem(deployment)
        serves = facts.holds(deployment, ConditionType.READY)
        failed = any(group.get("state") == GroupPhase.GAVE_UP for group in facts.groups(deployment))
        wanted = facts.replicas(deployment)
        groups = [_group(deployment, group) for group in facts.groups(deployment)]
        return {
            "id": model_id(key),
            "name": facts.full_name(deployment),
            "health": _health(bad=failed or _stuck(deployment), doubtful=bool(problem), used=serves and wanted > 0),
            "model": facts.model(deployment),
            "ready": facts.ready_groups(deployment),
            "wanted": wanted,
            "transport": facts.plain(status.get("transport") or ""),
            "tokensPerSecond": facts.plain(status.get("tokensPerSecond") or ""),
            "serves": bool(status.get("endpoint")) and serves,
            "key": bool(((deployment.get("spec") or {}).get("server") or {}).get("apiKeySecret")),
            "groups": groups,
            "copies": [_copy(copy) for copy in status.get("copies") or () if copy.get("phase") not in ENDED],
            "problem": _short(problem),
        }


def _health(*, bad: bool, doubtful: bool, used: bool) -> Health:
    if bad:
        return Health.BAD
    if doubtful:
        return Health.DOUBTFUL
    return Health.GOOD if used else Health.IDLE


def _stuck(deployment: Json) -> bool:
    """Whether a model waits for a change that a user must make."""
    found = facts.conditions(deployment)
    needed = (found[kind] for kind in (ConditionType.MODEL_RESOLVED, ConditionType.PLACED) if kind in found)
    faults = any(one.get("status") == "False" and of_condition(one) is Health.BAD for one in needed)
    return faults and not facts.holds(deployment, ConditionType.READY)


def _group(deployment: Json, group: Json) -> Entity:
    ranks = group.get("ranks") or ()
    loaded, total = (sum(int(rank.get(word) or 0) for rank in ranks) for word in ("loadedBytes", "totalBytes"))
    return {
        "name": facts.group_name(deployment, group),
        "state": facts.plain(group.get("state") or GroupPhase.PENDING),
        "macs": [facts.plain(rank.get("node") or "") for rank in ranks],
        "loaded": loaded,
        "total": total,
        "message": _short(facts.plain(group.get("message") or "")),
    }


def _copy(copy: Json) -> Entity:
    return {
        "mac": facts.plain(copy.get("node") or ""),
        "phase": facts.plain(copy.get("phase") or ""),
        "done": _count(copy.get("bytesDone")),
        "bytes": _count(copy.get("bytes")),
        "rate": _count(copy.get("bytesPerSecond")),
        "left": copy.get("secondsLeft"),
        "from": facts.plain(copy.get("peer") or copy.get("source") or ""),
        "message": _short(facts.plain(copy.get("message") or "")),
    }


def _ranks(deployment: Json | None) -> Iterator[tuple[str, Json]]:
    for group in facts.groups(deployment) if deployment is not None else ():
        for rank in group.get("ranks") or ():
            yield facts.group_name(deployment or {}, group), rank


def _uses(profile: Json | None) -> dict[str, set[str]]:
    """Names of groups by the cable that they use, from a NodeProfile."""
    found: dict[str, set[str]] = {}
    uses: Iterable[Json] = facts.status(profile or {}).get("groups") or ()
    for use in uses:
        for link in use.get("links") or ():
            found.setdefault(facts.plain(link), set()).add(facts.plain(use.get("name")))
    return found


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
