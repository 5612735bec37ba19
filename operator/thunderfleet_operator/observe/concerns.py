"""Which keys to work on after an object has changed.

A change of a cable or of an agent's report affects the ModelDeployments on its Macs, whose keys are queued at once. Which
others it affects depends on the whole fleet before and after it. A round of the fleet compares the two, once for all changes
since the last one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum

from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_lib.csr.names import NODE_PREFIX

from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.fetchpods import cache_key
from thunderfleet_operator.observe.objects.metadata import Json, owner_key, owner_uid
from thunderfleet_operator.observe.objects.nodes import read_node
from thunderfleet_operator.observe.objects.plans import read_plan
from thunderfleet_operator.observe.objects.pods import ENDED, pod_node
from thunderfleet_operator.observe.objects.routers import router_state
from thunderfleet_operator.placement import AddressKinds, Cable, Fleet, Mac
from thunderfleet_operator.watch.cache import (
    CACHES,
    CONFIGMAPS,
    DEPLOYMENTS,
    LINKS,
    NODEPROFILES,
    NODES,
    PODS,
    REQUESTS,
    Collection,
)

FLEET = "fleet"
FLEET_KEY = f"{FLEET}/all"
"""The work queue's key of the round of the fleet."""

Profiles = Mapping[str, NodeProfile | None]


def work_key(collection: Collection, key: str) -> str:
    """The work queue's key of an object: its collection and its ``namespace/name``."""
    return f"{collection.name}/{key}"


def macs_of(collection: Collection, key: str, item: Json | None) -> frozenset[str]:
    """The Macs whose NodeProfile depends on an object."""
    if collection in (NODES, NODEPROFILES):
        return frozenset({key})
    if item is None or (collection is PODS and owner_uid(item) is None):
        return frozenset()
    if collection is LINKS:
        return frozenset(str(item["spec"][end]["node"]) for end in ("a", "b"))
    if collection is PODS:
        node = pod_node(item)
        return frozenset({node} if node else ())
    plan = read_plan(item) if collection is CONFIGMAPS else None
    return frozenset(rank.node for rank in plan.ranks) if plan else frozenset()


def _only_heartbeat(before: Json | None, after: Json | None) -> bool:
    return before is not None and after is not None and read_node(before) == read_node(after)


def _only_groups(before: Json | None, after: Json | None) -> bool:
    """Whether a NodeProfile differs only in which groups have the Mac, as the operator writes for each group that gets a place.

    The Mac and its cables are unchanged then, but its free memory is not.
    """
    return before is not None and after is not None and _beside_groups(before) == _beside_groups(after)


def _beside_groups(profile: Json) -> Json:
    metadata, status = profile["metadata"], profile.get("status") or {}
    return {
        "metadata": {key: metadata[key] for key in metadata if key not in ("resourceVersion", "managedFields")},
        "status": {key: status[key] for key in status if key != "groups"},
    }


def _only_summary(before: Json | None, after: Json | None) -> bool:
    """Whether a ThunderboltLink differs only in what the operator writes of it, and not in what agents report."""
    return before is not None and after is not None and _reported(before) == _reported(after)


def _reported(link: Json) -> object:
    metadata, status = link["metadata"], link.get("status") or {}
    reported = status.get("endpoints"), status.get("measurements")
    return link["spec"], metadata.get("uid"), metadata.get("deletionTimestamp"), reported


def _fleet_keys(index: Index, collection: Collection, key: str, macs: Iterable[str]) -> Iterator[str]:
    """Keys for a change of a Mac, its cables first. A changed Node affects every ModelDeployment: usually it is a fault."""
    if collection is not LINKS:
        yield from (work_key(LINKS, link.metadata.name) for link in index.links_of.get(key, ()))
    names = index.deployments if collection is NODES else deployments_on(index, macs)
    yield from (work_key(DEPLOYMENTS, name) for name in names)
    if collection is not NODES:
        yield FLEET_KEY
    if collection is not LINKS:
        yield from (work_key(CACHES, name) for name in index.caches)


def deployments_on(index: Index, macs: Iterable[str]) -> dict[str, None]:
    """The ModelDeployments with a plan that names one of these Macs, or with a pod there."""
    plans, running = index.plans_on, index.running_on
    keys = (key for mac in macs for key in (*plans.get(mac, ()), *running.get(mac, ())))
    return dict.fromkeys(f"{namespace}/{name}" for namespace, name, *_ in keys)


# --- the fleet -------------------------------------------------------------------------------------------------------


class Reach(IntEnum):
    """Which ModelDeployments a change of the fleet affects, in addition to those that use what has changed."""

    NOBODY = 0
    TAKEN = 1
    """The same ModelDeployments as ``UNSETTLED``, but a group has only reserved memory, so none of them has more room than
    before."""
    UNSETTLED = 2
    """ModelDeployments that need a place, and later those that serve: they might have a better one."""
    EVERYBODY = 3
    """Also those that serve, because models on Macs or results of benchmarks have changed."""


def reach(before: Fleet, after: Fleet, profiles_before: Profiles, profiles: Profiles) -> Reach:
    """Whom a change concerns. The profiles are those of the fleets: copies of models are in no fleet."""
    if before is after and profiles_before is profiles:
        return Reach.NOBODY
    found = after.difference(before)
    if any(name in before.macs for name in found.gone) or any(_widely(before.macs.get(mac.name), mac) for mac in found.macs):
        return Reach.EVERYBODY
    if found.gone or _copies_differ(profiles_before, profiles):
        return Reach.UNSETTLED
    if not found.macs and not found.cables:
        return Reach.NOBODY
    taken = all(_only_taken(before.macs.get(mac.name), mac) for mac in found.macs)
    used = all(_only_used(before.cables.get(cable.name), cable) for cable in found.cables)
    return Reach.TAKEN if taken and used else Reach.UNSETTLED


def _only_taken(before: Mac | None, after: Mac) -> bool:
    """Whether a Mac differs only in that it has less room."""
    if before is None or after.free_bytes > before.free_bytes or after.in_use < before.in_use or after.full < before.full:
        return False
    return replace(after, free_bytes=before.free_bytes, in_use=before.in_use, full=before.full) == before


def _only_used(before: Cable | None, after: Cable) -> bool:
    """Whether a cable differs only in that more groups use it."""
    if before is None or after.in_use < before.in_use:
        return False
    ends = ((before.a, after.a), (before.b, after.b))
    if any(now.queue_pairs > then.queue_pairs for then, now in ends):
        return False
    a, b = (replace(now, queue_pairs=then.queue_pairs) for then, now in ends)
    return replace(after, a=a, b=b, in_use=before.in_use) == before


def _widely(before: Mac | None, after: Mac) -> bool:
    """Whether a change of a Mac may affect groups that serve on other Macs; False only if it certainly does not."""
    return before is None or _for_all(before) != _for_all(after)


def _for_all(mac: Mac) -> Mac:
    return replace(
        mac,
        address=None,
        free_bytes=0,
        in_use=False,
        labels={},
        taints=(),
        schedulable=True,
        quarantine=None,
        full=False,
        dials=None,
        kinds=AddressKinds(),
        store_bytes=0,
    )


def _copies_differ(before: Profiles, after: Profiles) -> bool:
    if before is after:
        return False
    changed = ((before.get(name), profile) for name, profile in after.items() if before.get(name) is not profile)
    return any((old.status.copies if old else ()) != (new.status.copies if new else ()) for old, new in changed)


# --- other objects ---------------------------------------------------------------------------------------------------


def _cache_keys(index: Index, collection: Collection, key: str, item: Json | None) -> Iterator[str]:
    """A ModelCache concerns the ModelDeployments of its namespace, and their plans concern it."""
    namespace = key.partition("/")[0] + "/"
    if collection is CACHES:
        yield work_key(CACHES, key)
        yield from (work_key(DEPLOYMENTS, name) for name in index.deployments if name.startswith(namespace))
    elif collection in (CONFIGMAPS, DEPLOYMENTS):
        yield from (work_key(CACHES, name) for name in index.caches if name.startswith(namespace))
    elif collection is PODS and item is not None and (cache := cache_key(item)) is not None:
        yield work_key(CACHES, cache)


def _requestor_keys(request: Json | None) -> Iterator[str]:
    """A certificate request concerns the Node whose kubelet has sent it."""
    user = str(((request or {}).get("spec") or {}).get("username") or "")
    if user.startswith(NODE_PREFIX):
        yield work_key(REQUESTS, user.removeprefix(NODE_PREFIX))


def concerned(
    index: Index,
    collection: Collection,
    key: str,
    before: Json | None,
    after: Json | None,
    unplaced: Iterable[str],
    *,
    own: bool = False,
    routers: str | None = None,
) -> Iterator[str]:
    """The keys to work on after an object has changed from ``before`` to ``after``; None: no such object.

    ``unplaced``: the ModelDeployments that wait for a place, which the end of a pod or of another ModelDeployment may make.
    ``own``: whether the operator has made the change. ``routers``: the namespace of routers, if there are any.
    """
    if collection is LINKS and _only_summary(before, after):
        # Where two Macs are joined is as before, and the round that has written the summary has used it.
        yield from () if own else (work_key(LINKS, key),)
        yield from _fleet_keys(index, LINKS, key, macs_of(LINKS, key, after))
    else:
        yield from _concerned(index, collection, key, before, after, unplaced, routers)


def _concerned(
    index: Index,
    collection: Collection,
    key: str,
    before: Json | None,
    after: Json | None,
    unplaced: Iterable[str],
    routers: str | None,
) -> Iterator[str]:
    if collection is NODES and _only_heartbeat(before, after):
        return
    if collection is REQUESTS:
        yield from _requestor_keys(after)
        return
    item = after or before
    yield from _cache_keys(index, collection, key, item)
    if collection is CACHES:
        return
    if collection is NODES and key in index.requests_of:
        yield work_key(REQUESTS, key)
    if collection in (DEPLOYMENTS, LINKS):
        yield work_key(collection, key)
    macs = macs_of(collection, key, item)
    yield from (work_key(NODEPROFILES, node) for node in macs)
    if collection is NODEPROFILES and _only_groups(before, after):
        yield FLEET_KEY
        return
    if collection in (NODES, NODEPROFILES, LINKS):
        yield from _fleet_keys(index, collection, key, macs)
        return
    if _concerns_all(collection, key, before, after, routers):
        yield from (work_key(DEPLOYMENTS, name) for name in index.deployments)
    # The previous owner too, because the owner reference may have been removed.
    yield from {work_key(DEPLOYMENTS, owner): None for one in (before, after) if one and (owner := owner_key(one))}
    if (collection is DEPLOYMENTS and after is None) or (collection is PODS and _makes_room(index, before, after)):
        yield from (work_key(DEPLOYMENTS, name) for name in unplaced)


def _makes_room(index: Index, before: Json | None, after: Json | None) -> bool:
    """Whether a pod that took something of a Mac has ended. Any user can create and delete other pods all the time."""
    if after is not None and not _ended(after):
        return False
    item = before or after
    node = index.nodes.get(str((item.get("spec") or {}).get("nodeName"))) if item is not None else None
    return node is not None and node.mac and not (before is not None and _ended(before))


def _concerns_all(collection: Collection, key: str, before: Json | None, after: Json | None, routers: str | None) -> bool:
    """Whether a change concerns all ModelDeployments: benchmarks correct their predictions, and routers are their endpoints.

    Any user may give pods the labels of routers; only those in the namespace of the release count.
    """
    if collection is DEPLOYMENTS:
        return before is not None and _benchmarked(before) != _benchmarked(after)
    ours = collection is PODS and routers is not None and key.startswith(f"{routers}/")
    return ours and router_state(before) != router_state(after)


def _benchmarked(deployment: Json | None) -> object:
    """What corrections of predictions depend on: the benchmark and, since it counts for one placement, the groups' epochs."""
    status = (deployment or {}).get("status") or {}
    if not status.get("benchmark"):
        return None
    return status["benchmark"], [(group.get("index"), group.get("epoch")) for group in status.get("groups", ())]


def _ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ENDED
