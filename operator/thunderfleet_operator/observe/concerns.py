"""Which keys to work on after an object has changed."""

from collections.abc import Iterable, Iterator

from thunderfleet_lib.csr.names import NODE_PREFIX

from thunderfleet_operator.observe.fetchpods import cache_key
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.nodes import read_node
from thunderfleet_operator.observe.objects import Json, owner_key, owner_uid
from thunderfleet_operator.observe.plans import read_plan
from thunderfleet_operator.observe.pods import ENDED, pod_node
from thunderfleet_operator.observe.routers import router_state
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


def _fleet_keys(index: Index, collection: Collection, key: str) -> Iterator[str]:
    """A change of the fleet concerns every ModelDeployment, and before that a change of a Mac its own cables."""
    if collection is not LINKS:
        yield from (work_key(LINKS, link.metadata.name) for link in index.links_of.get(key, ()))
    yield from (work_key(DEPLOYMENTS, name) for name in index.deployments)
    if collection is not LINKS:
        yield from (work_key(CACHES, name) for name in index.caches)


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
    index: Index, collection: Collection, key: str, before: Json | None, after: Json | None, unplaced: Iterable[str]
) -> Iterator[str]:
    """The keys to work on after an object has changed from ``before`` to ``after``; None: no such object.

    ``unplaced``: the ModelDeployments that wait for a place, which the end of a pod or of another ModelDeployment may make.
    """
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
    yield from (work_key(NODEPROFILES, node) for node in macs_of(collection, key, item))
    if collection in (NODES, NODEPROFILES, LINKS):
        yield from _fleet_keys(index, collection, key)
        return
    if _concerns_all(collection, before, after):
        yield from (work_key(DEPLOYMENTS, name) for name in index.deployments)
    # Also the owner before: somebody may have removed it.
    yield from {work_key(DEPLOYMENTS, owner): None for one in (before, after) if one and (owner := owner_key(one))}
    if (after is None and collection in (DEPLOYMENTS, PODS)) or (collection is PODS and after and _ended(after)):
        yield from (work_key(DEPLOYMENTS, name) for name in unplaced)


def _concerns_all(collection: Collection, before: Json | None, after: Json | None) -> bool:
    """Whether a change concerns all ModelDeployments: benchmarks correct their predictions, and routers are their endpoints."""
    if collection is DEPLOYMENTS:
        return before is not None and _benchmarked(before) != _benchmarked(after)
    return collection is PODS and router_state(before) != router_state(after)


def _benchmarked(deployment: Json | None) -> object:
    """What corrections of predictions depend on: the benchmark and, since it counts for one placement, the groups' epochs."""
    status = (deployment or {}).get("status") or {}
    if not status.get("benchmark"):
        return None
    return status["benchmark"], [(group.get("index"), group.get("epoch")) for group in status.get("groups", ())]


def _ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ENDED
