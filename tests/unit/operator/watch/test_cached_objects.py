"""What the cache keeps of objects, and how lists fill it."""

import asyncio
import base64
import copy
import gc
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping
from functools import partial
from random import Random
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_crds.kinds.nodeprofile import MAX_PORTS, Model
from thunderfleet_crds.names import ANNOTATION_BACKUP, ANNOTATION_HASH
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_lib.kube.client import Page
from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.nodes import read_node
from thunderfleet_operator.observe.objects.proofs import TRUSTING
from thunderfleet_operator.watch import claims as claims_module
from thunderfleet_operator.watch import kopf_watch
from thunderfleet_operator.watch import lists as lists_module
from thunderfleet_operator.watch.cache import (
    CACHED,
    ENDPOINT_SLICES,
    LINKS,
    NODEPROFILES,
    NODES,
    POD_BYTES,
    PODS,
    REMEMBERED,
    REMEMBERED_GONE,
    REQUESTS,
    Cache,
    Collection,
    Store,
)
from thunderfleet_operator.watch.claims import LINKS_OF_MAC, LINKS_OF_TWO
from thunderfleet_operator.watch.lean import NOTE_BYTES, Lean, Packed
from thunderfleet_operator.watch.lists import Lists

from tests.support.waiting import until_async

MODEL = {"path": "/models/large", "bytes": 5, "pipeline": {"layerBytes": [1, 2]}}


def item(name: str, version: int = 1, **parts: Any) -> dict[str, Any]:
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "managedFields": [{"manager": "agent"}]}
    return {"metadata": {**meta, **parts.pop("metadata", {})}, **parts}


def anew(value: Any) -> Any:
    """Equal to the value, with nothing in common in memory, as if it had been received."""
    return json.loads(json.dumps(value))


def test_what_nothing_reads_is_not_kept() -> None:
    backup = {ANNOTATION_BACKUP: "2026-03-01T00:00:00Z"}
    notes = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 1000, "team": "red", **backup}
    status = {
        "images": [{"names": ["registry/image"], "sizeBytes": 1}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "allocatable": {"memory": "64Gi"},
        "nodeInfo": {"bootID": "b"},
    }
    labels = {"kubernetes.io/os": "darwin"}
    whole = item("a", metadata={"annotations": notes, "labels": labels}, spec={"unschedulable": True}, status=status)
    before = copy.deepcopy(whole)
    store = Store(NODES)
    store.put(whole)
    kept = store.items["a"]
    assert whole == before, "kopf still holds the object"
    assert kept["metadata"] == {
        "name": "a",
        "uid": "uid-a",
        "resourceVersion": "1",
        "annotations": backup,
        "labels": labels,
    }
    assert kept["status"] == {key: value for key, value in status.items() if key != "images"} and kept["spec"] == whole["spec"]
    assert read_node(kept) == read_node(whole)


@pytest.mark.parametrize("collection", [one for one in CACHED if one is not REQUESTS], ids=lambda one: one.name)
def test_little_is_kept_of_the_metadata_that_a_user_can_add(collection: Collection) -> None:
    """The API server allows 256 KiB of annotations, and more than that of other metadata."""
    names = [os.urandom(60).hex() for _ in range(1000)]
    added: dict[str, Any] = {
        "annotations": {f"team/{name}": os.urandom(60).hex() for name in names} | {ANNOTATION_HASH: os.urandom(90_000).hex()},
        "finalizers": [f"example.com/{name}" for name in names],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name} for name in names],
    }
    if collection is not NODES:
        added["labels"] = {f"l/{name[:60]}": name[:60] for name in names}
    plain, item_of = (Store(collection), partial(item, "a", spec={"model": {}}, data={"plan.json": "{}"}))
    plain.put(item_of())
    store = Store(collection)
    store.put(item_of(metadata=added))
    sizes = [len(json.dumps(one.items["a"])) for one in (store, plain)]
    labels = len(json.dumps(added["labels"])) if collection in (PODS, ENDPOINT_SLICES) else 0
    assert sizes[0] < sizes[1] + NOTE_BYTES + labels + 200


def test_few_of_the_deleted_objects_are_remembered() -> None:
    """A user can create and delete pods all day, and nothing lists them as long as the watch works."""
    store = Store(PODS)
    for number in range(1, REMEMBERED_GONE + 100):
        store.drop(item(f"pod-{number}", number))
    store.drop(item("pod-90", number + 1))
    assert len(store.gone) == REMEMBERED_GONE
    for late in (number, 90, 101):
        assert not store.put(item(f"pod-{late}", late)), "an event that is older than the deletion"


def test_little_is_kept_of_the_megabyte_of_a_pod() -> None:
    """Any user who may create pods can create a thousand of them."""
    noise = base64.b64encode(os.urandom(300_000)).decode()
    container = {"name": "main", "image": noise, "env": [{"name": "A", "value": noise}], "ports": [{"hostPort": 80}]}
    pod = item("a", metadata={"annotations": {"a": noise, "thunderfleet.io/ports": noise}}, spec={"containers": [container]})
    store = Store(PODS)
    store.put(pod)
    kept = store.items.kept["a"]
    assert isinstance(kept, Packed) and len(kept.text) < POD_BYTES
    assert store.items["a"]["spec"]["containers"] == [{"ports": [{"hostPort": 80}]}]
    small = item("b", spec={"containers": [{"name": "main", "image": "x"}]})
    store.put(small)
    assert store.items["b"]["spec"] == small["spec"]


def test_equal_strings_and_models_are_kept_once() -> None:
    cache = Cache()
    store = cache[NODEPROFILES]
    status = {"hardware": {"chip": "Apple M3 Ultra, 60-core GPU"}, "models": [MODEL]}
    for name in "ab":
        store.put(anew(item(name, status=status)))
    a, b = (store.items[name]["status"] for name in "ab")
    assert a == b == status
    assert a["models"] is b["models"]
    values = [profile for profile in Index(cache, lambda: TRUSTING).profiles.values() if profile is not None]
    assert len({id(value.status.hardware.chip) for value in values if value.status.hardware}) == 1 and len(values) == 2
    assert a["models"] is store.items["a"]["status"]["models"], "they are not unpacked again for every Mac"
    store.put(anew(item("b", 2, status={"models": [{**MODEL, "bytes": 6}]})))
    assert store.items["b"]["status"]["models"][0]["bytes"] == 6 and a["models"] == [MODEL]


def test_models_of_any_form_are_kept_as_they_are() -> None:
    lean = Lean()
    oddities: tuple[Any, ...] = ([], None, "all", 7, {"path": "/m"})
    for odd in oddities:
        kept = lean(item("a", status={"models": odd}), labels=False)
        assert kept == {"metadata": lean(item("a"), labels=False)["metadata"], "status": {"models": odd}}
    assert lean(item("a", status="broken"), labels=False)["status"] == "broken"


def test_lists_of_models_that_are_no_more_do_not_pile_up() -> None:
    """A list can take megabytes, and a Mac can publish another one every second."""
    cache = Cache()
    index = Index(cache, lambda: TRUSTING)
    cache[NODES].put(item("a", 1, metadata={"labels": {"kubernetes.io/os": "darwin"}}))

    def live() -> int:
        gc.collect()
        mark = "/models/changing-"
        models = sum(1 for one in gc.get_objects() if type(one) is Model and one.path.startswith(mark))
        return models + sum(1 for one in gc.get_objects() if type(one) is dict and str(one.get("path")).startswith(mark))

    for number in range(1, 30):
        cache[NODEPROFILES].put(item("a", number, status={"models": [{**MODEL, "path": f"/models/changing-{number}"}]}))
        assert index.fleet.macs["a"].models[0].path == f"/models/changing-{number}"
    assert live() <= 4


def test_objects_are_packed_and_what_is_read_of_them_is_nobodys_but_the_readers() -> None:
    store = Store(PODS)
    whole = item("a", spec={"containers": [{"name": f"container-{number}"} for number in range(100)]})
    assert store.put(anew(whole)) and not store.put(anew(whole))
    kept = store.items.kept["a"]
    assert isinstance(kept, Packed) and len(kept.text) < len(json.dumps(whole)) / 5
    store.items["a"]["spec"]["containers"].clear()
    assert store.items["a"]["spec"] == whole["spec"]
    assert store.items.kept["a"] is kept, "an object that has not changed is known by its identity"
    assert store.put(anew(item("a", 2))) and store.items.kept["a"] is not kept and "spec" not in store.items["a"]


def test_a_value_is_made_again_only_when_its_object_has_changed() -> None:
    cache = Cache()
    index = Index(cache, lambda: TRUSTING)
    for name in "ab":
        cache[NODEPROFILES].put(item(name, status={"models": [MODEL]}))
    first = index.profiles
    cache[NODEPROFILES].put(item("b", 2, status={"models": [MODEL]}))
    assert index.profiles["a"] is first["a"] is not None and index.profiles["b"] is not first["b"]


# --- lists ---


class Pages(Kube):
    """Lists these pages of one collection, and nothing of the others."""

    def __init__(self, path: str, pages: list[Page], seen: Any) -> None:
        self._path, self._given, self._seen = path, pages, seen

    async def pages(self, path: str, query: Mapping[str, object], accept: str = "") -> AsyncIterator[Page]:
        for page in self._given if path == self._path else [Page([], "9")]:
            self._seen()
            yield page


async def test_a_list_is_taken_over_page_by_page() -> None:
    cache, changes, held = Cache(), list[Any](), list[set[str]]()
    store = cache[PODS]
    store.put(item("old", 3))
    store.put(item("newer", 12))
    pages = [Page([item("a", 5), item("newer", 8)], "10"), Page([item("b", 6)], "10")]
    kube = Pages(PODS.path, pages, lambda: held.append(set(store.items)))
    lists = Lists(kube, cache, lambda *change: changes.append(change))
    await lists.refill()
    assert {"old", "newer", "a"} in held, "the first page was in the cache before the second was read"
    assert set(store.items) == {"newer", "a", "b"} and store.items["newer"]["metadata"]["resourceVersion"] == "12"
    assert [(key, before is None, after is None) for _, key, before, after in changes] == [
        ("a", True, False),
        ("b", True, False),
        ("old", False, True),
    ]


async def test_the_first_list_tells_nobody_and_later_ones_only_of_what_has_changed() -> None:
    """Whoever begins to act works on everything: at a thousand Macs it would take a second to say so object by object."""
    cache, changes = Cache(), list[Any]()
    kube = Pages(PODS.path, [Page([item("a", 5), item("b", 6)], "10")], lambda: None)
    lists = Lists(kube, cache, lambda *change: changes.append(change))
    await lists.fill()
    assert set(cache[PODS].items) == {"a", "b"} and not changes
    kube._given = [Page([item("a", 5), item("b", 11)], "12")]
    await lists.refill()
    told = [(key, *(one["metadata"]["resourceVersion"] for one in objects)) for _, key, *objects in changes]
    assert told == [("b", "6", "11")]


def test_kopf_lists_in_pages_and_holds_no_object_for_long() -> None:
    """It lists everything once more at its start, while the cache has it already, and any user may create large pods."""
    found = kopf_watch.settings()
    assert found.watching.chunk_size is not None and found.watching.chunk_size <= 20 and found.queueing.idle_timeout <= 1


def link(name: str, version: int, a: str, b: str, uid: str = "") -> dict[str, Any]:
    spec = {"a": {"node": a, "port": 1}, "b": {"node": b, "port": 1}}
    found = item(name, version, spec=spec)
    found["metadata"]["uid"] = uid or f"uid-{name}"
    return found


def cable(one: tuple[str, int], other: tuple[str, int], version: int, *reporters: str) -> dict[str, Any]:
    """A link between two ports, with the ends that agents report."""
    a, b = ({"node": node, "port": port} for node, port in sorted((one, other)))
    name = f"{a['node']}.tb{a['port']}--{b['node']}.tb{b['port']}"
    ends = [{**end, "seesPeer": True} for end in (a, b) if end["node"] in reporters]
    return item(name, version, spec={"a": a, "b": b}, status={"endpoints": ends})


def name_of(link: dict[str, Any]) -> str:
    return str(link["metadata"]["name"])


def claims_of(mac: str, *others: str) -> list[dict[str, Any]]:
    """What a compromised agent can claim of its Mac's ports."""
    ports = range(MAX_PORTS + 1)
    claims = ((mine, other, port) for mine in ports for other in others for port in ports)
    return [cable((mac, mine), (other, port), 3 + n, mac) for n, (mine, other, port) in enumerate(claims)]


@pytest.mark.parametrize("seed", range(4))
def test_a_compromised_mac_has_as_many_cables_as_a_mac_can_have(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """An agent may create links from any of its ports to any port of every other Mac."""
    macs = [f"m{number}" for number in range(12)]
    honest = [cable(("m1", port), ("m2", port), port, "m1", *(["m2"] if port > 1 else [])) for port in (1, 2)]
    claims = claims_of("m0", *macs[1:])
    links = [*honest, *claims]
    Random(seed).shuffle(links)
    cache = Cache()
    for mac in macs:
        cache[NODES].put(item(mac, 1, metadata={"labels": {"kubernetes.io/os": "darwin"}}))
    taken = sum([cache[LINKS].put(one) for one in links])
    index = Index(cache, lambda: TRUSTING)
    assert set(map(name_of, honest)) < cache[LINKS].items.keys() == index.fleet.cables.keys() == index.links.keys()
    assert len(index.links_of["m0"]) <= LINKS_OF_MAC and taken < len(links) / 2, "the others cause no round"
    assert all(len(index.links_of.get(mac, ())) <= LINKS_OF_TWO + 2 for mac in macs[1:])
    assert any(said.startswith("Mac m0 has more ThunderboltLinks than Macs have ports") for said in caplog.messages)
    assert any(said.startswith("Macs m0 and m1 have more") for said in caplog.messages)


def test_no_mac_replaces_the_cables_of_others() -> None:
    store = Cache()[LINKS]
    hidden = cable(("x", 16), ("z", 16), 1, "z")
    for claim in [*claims_of("a", "x", "y", "z"), hidden]:
        store.put(claim)
    assert name_of(hidden) in store.items, "one Mac does not take all places of another"
    for mac in "bcdefghij":
        for claim in claims_of(mac, "x"):
            store.put(claim)
    assert name_of(hidden) not in store.items and len(store.items) < 2 * LINKS_OF_MAC
    seen = cable(("x", 16), ("z", 16), 999, "z", "x")
    assert store.put(seen) and name_of(seen) in store.items, "its own agent reports it by now"
    for claim in claims_of("k", "x"):
        store.put(claim)
    assert name_of(seen) in store.items


def test_links_that_are_gone_make_room() -> None:
    store = Cache()[LINKS]
    claims = claims_of("a", "b")
    for claim in claims:
        store.put(claim)
    assert set(store.items) == set(sorted(map(name_of, claims))[:LINKS_OF_TWO])
    store.drop({**claims[0], "metadata": {**claims[0]["metadata"], "resourceVersion": "9999"}})
    last = cable(("a", 9), ("b", 9), 9999, "a")
    assert store.put(last) and name_of(last) in store.items and len(store.items) == LINKS_OF_TWO
    store.keep({name_of(last)}, "9999")
    assert store.put(cable(("a", 8), ("b", 8), 10_000, "a")) and len(store.items) == 2


async def test_links_that_did_not_count_are_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists_module, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(claims_module, "LINKS_OF_TWO", 2)
    cache, changes, count = Cache(), list[str](), 0
    links = [cable(("a", port), ("b", port), port, "a") for port in (1, 2, 3)]

    def listed() -> None:
        nonlocal count
        count += 1

    kube = Pages(LINKS.path, [Page(links, "10")], listed)
    lists = Lists(kube, cache, lambda collection, key, before, after: changes.append(key))
    await lists.fill()
    assert set(cache[LINKS].items) == {"a.tb1--b.tb1", "a.tb2--b.tb2"}
    cache[LINKS].drop({**links[0], "metadata": {**links[0]["metadata"], "resourceVersion": "11"}})
    kube._given, count = [Page(links[1:], "12")], 0
    await lists._list_left_links()
    assert set(cache[LINKS].items) == {"a.tb2--b.tb2", "a.tb3--b.tb3"} and changes == ["a.tb3--b.tb3"] and count == 1
    await lists._list_left_links()
    assert count == 1, "all are kept"


async def test_links_that_never_count_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round sees them. The first list after they appear may be the moment before an agent reports its end."""
    monkeypatch.setattr(lists_module, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(claims_module, "LINKS_OF_TWO", 2)
    removed: list[tuple[str, str]] = []

    async def remove(name: str, uid: str) -> None:
        removed.append((name, uid))

    def claim(port: int, uid: str) -> dict[str, Any]:
        found = cable(("a", port), ("b", port), port, "a")
        return {**found, "metadata": {**found["metadata"], "uid": uid}}

    kube = Pages(LINKS.path, [Page([claim(port, "one") for port in (1, 2, 3, 4)], "10")], lambda: None)
    lists = Lists(kube, Cache(), lambda *_: None, remove)
    await lists.fill()
    await lists._list_left_links()
    assert removed == []
    kube._given = [Page([claim(1, "one"), claim(2, "one"), claim(3, "one"), claim(4, "another")], "10")]
    await lists._list_left_links()
    assert removed == [("a.tb3--b.tb3", "one")]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "forget", "keep", "read", "read"]),
        st.sampled_from("wxyz"),
        st.sampled_from(["ab", "bc", "ca", "aa"]),
        st.sampled_from(["", "another"]),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 6))
def test_values_that_follow_changes_are_those_of_all_objects(steps: list[tuple[str, str, str, str]], remembered: int) -> None:
    cache = Cache()
    store = cache[LINKS]
    store._changes = deque(maxlen=remembered)
    index = Index(cache, lambda: TRUSTING)
    for version, (what, name, ends, uid) in enumerate([*steps, ("read", "", "", "")], 1):
        if what == "put":
            store.put(link(name, version, ends[0], ends[1], uid))
        elif what == "drop":
            store.drop(link(name, version, ends[0], ends[1], uid))
        elif what == "forget":
            store.forget(name, uid or f"uid-{name}")
        elif what == "keep":
            store.keep({name}, str(version))
        else:
            held, before = index.links_of, copy.copy(index.links_of)
            fresh = Index(cache, lambda: TRUSTING)
            assert index.links == fresh.links
            assert {mac: {one.metadata.name: one for one in links} for mac, links in index.links_of.items()} == {
                mac: {one.metadata.name: one for one in links} for mac, links in fresh.links_of.items()
            }
            assert all(len({one.metadata.name for one in links}) == len(links) > 0 for links in index.links_of.values())
            assert held == before, "what was returned stays as it was"


def test_a_change_reads_one_object_and_forgotten_changes_cost_a_look_at_all(monkeypatch: Any) -> None:
    cache, reads = Cache(), list[str]()
    store = cache[NODES]
    index = Index(cache, lambda: TRUSTING)

    def read(node: Any) -> Any:
        reads.append(node["metadata"]["name"])
        return read_node(node)

    monkeypatch.setattr("thunderfleet_operator.observe.index.read_node", read)
    for number in range(REMEMBERED):
        store.put(item(f"n{number}"))
    values = index.nodes
    reads.clear()
    store.put(item("n7", 2))
    assert store.changed_since(store.revision - 1) == ("n7",) and store.changed_since(store.revision) == ()
    assert index.nodes["n7"] is not values["n7"] and index.nodes["n8"] is values["n8"] and reads == ["n7"]
    for number in range(REMEMBERED + 1):
        store.put(item("n9", 10 + number))
    assert store.changed_since(store.revision - REMEMBERED - 1) is None
    assert index.nodes["n9"] is not values["n9"] and index.nodes["n8"] is values["n8"] and reads == ["n7", "n9"]


COLLECTIONS = st.sampled_from([NODEPROFILES, NODEPROFILES, LINKS])


@given(st.lists(st.tuples(COLLECTIONS, st.sampled_from("abc"), st.booleans(), st.integers(0, 2)), max_size=30))
def test_a_fleet_that_follows_changes_is_that_of_all_objects(steps: list[tuple[Any, str, bool, int]]) -> None:
    """What is known of a cable's end depends on the profile of its Mac, while its own agent does not report it."""
    cache = Cache()
    for name in "abc":
        cache[NODES].put(item(name, 1, metadata={"labels": {"kubernetes.io/os": "darwin"}}))
    index = Index(cache, lambda: TRUSTING)
    for version, (collection, name, there, seen) in enumerate(steps, 2):
        other = "abc"[("abc".index(name) + 1) % 3]
        if collection is LINKS:
            changed = link(f"{name}{other}", version, name, other)
        else:
            port = {"receptacle": 1, "interface": "en2", "speedMbps": 40_000 * (seen + 1)}
            status = {"thunderbolt": {"ports": [port]}, "network": {"interfaces": []}} if seen else {}
            changed = item(name, version, status=status)
        if there:
            cache[collection].put(changed)
        else:
            cache[collection].drop(changed)
        if seen < 2:
            fresh = Index(cache, lambda: TRUSTING)
            assert (index.fleet.macs, index.fleet.cables) == (fresh.fleet.macs, fresh.fleet.cables)


async def test_what_a_write_finds_missing_goes_only_when_a_list_does_not_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kopf's list after a broken watch was empty, so no event came for it. A server that starts does not serve kinds yet."""
    monkeypatch.setattr(lists_module, "RELIST_SECONDS", 0.0)
    monkeypatch.setattr(lists_module, "LOOK_SECONDS", 0.01)
    served, asked = False, 0

    class Server:
        async def apply(self, path: str, manifest: Any, manager: str) -> Any:
            raise ApiError(404, "NotFound", "not found")

        async def list_keys(self, path: str, **query: object) -> tuple[set[str], str]:
            nonlocal asked
            asked += 1
            if not served:
                raise ApiError(404, "NotFound", "the server could not find the requested resource")
            return set(), "9"

    cache, gone = Cache(), list[str]()
    cache[PODS].put(item("a", 3))
    server: Any = Server()
    metrics: Any = MagicMock()
    lists = Lists(server, cache, lambda collection, key, before, after: gone.append(key))
    writer = Writer(server, cache, metrics, lambda: 1, lambda *_: None, lambda *_: None, lists.missing)
    running = asyncio.create_task(lists.run())
    try:
        with pytest.raises(ApiError):
            await writer.apply_status(PODS, {"metadata": {"name": "a"}})
        await until_async(lambda: asked >= 2, "two lists have failed")
        assert not gone and set(cache[PODS].items) == {"a"}
        served = True
        await until_async(lambda: gone == ["a"], "it is dropped")
        await until_async(lambda: not lists._relisted, "no further list is due")
    finally:
        running.cancel()


async def test_writes_that_go_on_finding_it_missing_do_not_put_the_list_off() -> None:
    server: Any = None
    lists = Lists(server, Cache(), lambda *_: None)
    lists.missing(PODS)
    since = dict(lists._relisted)
    lists.missing(PODS)
    assert lists._relisted == since
