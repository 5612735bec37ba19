"""What is decided about models that are fetched: without clusters, from values to decisions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from thunderfleet_crds.conditions import find_condition
from thunderfleet_crds.copies import ModelCopy
from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.modelcache import ModelCache, ModelCacheStatus
from thunderfleet_crds.nodeprofile import (
    Agent,
    Interface,
    InterfaceAddress,
    Model,
    ModelStore,
    Network,
    NodeProfile,
    NodeProfileStatus,
)
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import AddressClass, ConditionType, CopyPhase, CopySource, InterfaceKind
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.weights import cache as decisions
from thunderfleet_operator.decide.weights import manifests
from thunderfleet_operator.decide.weights.cache import CacheDecision, decide
from thunderfleet_operator.decide.weights.manifests import HubSettings, NewPod
from thunderfleet_operator.decide.weights.uplink import uplink_mbps
from thunderfleet_operator.observe.fetchpods import FetchPod, Task, read_fetch_pod
from thunderfleet_operator.observe.nodes import Node
from thunderfleet_operator.observe.observed import ObservedCache
from thunderfleet_operator.observe.proofs import Keyring
from thunderfleet_operator.observe.weights import snapshot

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
COMMIT, DIGEST, UID = "c" * 40, "d" * 64, "11111111-2222-3333-4444-555555555555"
GIB = 2**30
MODEL = Model(path="/", repository="o/n", revision=COMMIT, bytes=8 * GIB, complete=True)
STORE = "/Library/Thunderfleet/models"


def cache(status: Mapping[str, Any] | None = None, **spec: object) -> ModelCache:
    metadata = {"name": "tiny", "namespace": "ns", "uid": UID, "generation": 3}
    found = ModelCache.load({"metadata": metadata, "spec": {"repository": "o/n", **spec}})
    return found.model_copy(update={"status": ModelCacheStatus(**(status or {}))})


RESOLVED = {
    "resolved_from": "o/n@main",
    "commit": COMMIT,
    "manifest": DIGEST,
    "files": 4,
    "bytes": 8 * GIB,
    "model": MODEL,
}


def node(name: str, **about: Any) -> Node:
    return replace(Node(name, ready=True, labels={"kubernetes.io/os": "darwin", "room": name}), **about)


def profile(
    name: str, free: int = 100 * GIB, copy: CopyPhase | None = None, done: int = 0, problem: str | None = None
) -> NodeProfile:
    copies = (
        (ModelCopy(repository="o/n", commit=COMMIT, manifest=DIGEST, phase=copy, bytes=8 * GIB, bytes_done=done),)
        if copy
        else ()
    )
    store = ModelStore(folder=STORE, free_bytes=free, problem=problem)
    return NodeProfile(metadata={"name": name}, status=NodeProfileStatus(store=store, copies=copies))


def observed(
    one: ModelCache,
    pods: Sequence[FetchPod] = (),
    needed: Sequence[str] = (),
    nodes: Sequence[Node] | None = None,
    **profiles: NodeProfile,
) -> ObservedCache:
    known = profiles or {"a": profile("a"), "b": profile("b")}
    there = {entry.name: entry for entry in nodes or [node(name) for name in known]}
    return ObservedCache(one, pods, there, known, frozenset(needed), NOW)


def pod(task: Task, at: str = "a", message: str = "", phase: str = "Running", age: float = 5.0) -> FetchPod:
    arguments: tuple[str, ...] = ("--repository", "o/n", "--revision", "main")
    if task is Task.DOWNLOAD:
        arguments = ("--repository", "o/n", "--commit", COMMIT, "--manifest", DIGEST)
    created = NOW - timedelta(seconds=age)
    return FetchPod("p", "ns", "u", "ns/tiny", UID, task, arguments, at, phase, False, message, "", created)


def sources(decision: CacheDecision) -> dict[str, CopySource]:
    return {one.node: one.source for one in decision.status.assignments}


def reason(decision: CacheDecision, kind: ConditionType) -> str:
    found = find_condition(decision.status.conditions, kind)
    assert found is not None
    return found.reason


def test_a_new_cache_is_resolved_by_one_pod() -> None:
    first = decide(observed(cache()))
    assert first.create == NewPod(Task.RESOLVE, "a", 0)
    assert reason(first, ConditionType.RESOLVED) == Reason.RESOLVING
    again = decide(observed(cache(first.status.__dict__), [pod(Task.RESOLVE)]))
    assert again.create is None and not again.delete


def test_the_result_of_a_pod_becomes_the_status() -> None:
    result = FetchResult(Reason.RESOLVED, commit=COMMIT, manifest=DIGEST, files=4, bytes=8 * GIB, model=MODEL)
    known = decide(observed(cache({"resolved_from": "o/n@main"}), [pod(Task.RESOLVE, message=result.text, phase="Succeeded")]))
    assert (known.status.commit, known.status.manifest, known.status.model) == (COMMIT, DIGEST, MODEL)
    assert [one.task for one in known.delete] == [Task.RESOLVE]
    assert reason(known, ConditionType.RESOLVED) == Reason.RESOLVED


@pytest.mark.parametrize(
    ("result", "why", "seconds"),
    [
        (FetchResult(Reason.GATED, "ask").text, Reason.GATED, decisions.SLOW_SECONDS),
        (FetchResult(Reason.RATE_LIMITED, "wait", 77).text, Reason.RATE_LIMITED, 77),
        (FetchResult(Reason.HUB_UNREACHABLE, "away").text, Reason.HUB_UNREACHABLE, 10),
        ("Killed: 9", Reason.DOWNLOAD_FAILED, 10),
        ("", Reason.DOWNLOAD_FAILED, 10),
        ('{"reason": "NoSuchReason"}', Reason.DOWNLOAD_FAILED, 10),
    ],
)
def test_a_failure_is_shown_and_tried_again(result: str, why: Reason, seconds: float) -> None:
    start = cache({"resolved_from": "o/n@main"})
    failed = decide(observed(start, [pod(Task.RESOLVE, message=result, phase="Failed")]))
    assert failed.create is None
    assert reason(failed, ConditionType.RESOLVED) == why
    download = failed.status.download
    assert download is not None and download.next_time == NOW + timedelta(seconds=seconds)
    waiting = decide(observed(cache(failed.status.__dict__)))
    assert waiting.create is None and waiting.recheck_seconds == pytest.approx(seconds)
    due = replace(observed(cache(failed.status.__dict__)), now=NOW + timedelta(seconds=seconds + 1))
    # Another Mac is tried, which may reach the hub.
    assert decide(due).create == NewPod(Task.RESOLVE, "b", 1)


def test_the_commit_is_kept_until_the_spec_changes() -> None:
    assert decide(observed(cache(RESOLVED))).status.commit == COMMIT
    for spec in ({"revision": "v2"}, {"token_secret": "hub"}, {"repository": "o/other"}):
        changed = decide(observed(cache(RESOLVED, **spec)))
        assert changed.status.commit is None and changed.status.assignments == ()
        assert changed.create is not None and changed.create.task is Task.RESOLVE


@pytest.mark.parametrize(
    ("spec", "needed", "expected"),
    [
        ({}, (), {"a"}),
        ({"copies": 2}, (), {"a", "b"}),
        ({"copies": 0}, (), set()),
        ({"copies": 0}, ("b",), {"b"}),
        ({"copies": 1}, ("b",), {"b"}),
        ({"node_selector": {"room": "b"}}, (), {"b"}),
        ({"node_selector": {"kubernetes.io/os": "darwin"}}, (), {"a", "b"}),
        ({"node_selector": {"kubernetes.io/os": "darwin"}, "copies": 1}, (), {"a"}),
    ],
)
def test_which_macs_hold_a_model(spec: dict[str, Any], needed: tuple[str, ...], expected: set[str]) -> None:
    found = decide(observed(cache(RESOLVED, **spec), needed=needed))
    assert {one.node for one in found.status.assignments} == expected
    assert (found.create is None) == (not expected)


def test_one_mac_downloads_and_the_other_waits() -> None:
    found = decide(observed(cache(RESOLVED, copies=2), a=profile("a"), b=profile("b", free=200 * GIB)))
    assert sources(found) == {"a": CopySource.PEER, "b": CopySource.HUB}
    assert found.create == NewPod(Task.DOWNLOAD, "b", 0, STORE)


def online(found: NodeProfile, kind: InterfaceKind, mbps: int | None = None, address: str = "10.0.0.1") -> NodeProfile:
    """The same Mac, whose agent listens at 10.0.0.1, with this interface and a fast one that is not used."""
    interfaces = (
        Interface(name="en9", kind=InterfaceKind.ETHERNET, up=True, speed_mbps=100_000),
        Interface(
            name="en0",
            kind=kind,
            up=True,
            speed_mbps=mbps,
            addresses=(InterfaceAddress(address=address, prefix_length=24, class_=AddressClass.PRIVATE),),
        ),
    )
    agent = Agent(address="10.0.0.1", port=9440, certificate_sha256="a" * 64)
    status = found.status.model_copy(update={"agent": agent, "network": Network(interfaces=interfaces)})
    return found.model_copy(update={"status": status})


@pytest.mark.parametrize(
    ("kind", "mbps", "address", "expected"),
    [
        (InterfaceKind.ETHERNET, 10_000, "10.0.0.1", 10_000),
        (InterfaceKind.ETHERNET, None, "10.0.0.1", 1000),
        (InterfaceKind.ETHERNET, 100, "10.0.0.1", 100),
        (InterfaceKind.WIFI, None, "10.0.0.1", 300),
        # The speed of a cable to a Mac that shares its connection is not that of the connection.
        (InterfaceKind.THUNDERBOLT, 80_000, "10.0.0.1", 1000),
        (InterfaceKind.VPN, None, "10.0.0.1", 100),
        # No interface has the address that the agent listens on.
        (InterfaceKind.ETHERNET, 10_000, "10.0.0.2", 100),
    ],
)
def test_how_fast_a_connection_is(kind: InterfaceKind, mbps: int | None, address: str, expected: int) -> None:
    assert uplink_mbps(online(profile("a"), kind, mbps, address)) == expected
    assert uplink_mbps(None) == uplink_mbps(profile("a")) == 100


def test_the_mac_with_the_fastest_connection_downloads() -> None:
    a = online(profile("a", free=900 * GIB), InterfaceKind.WIFI)
    b = online(profile("b"), InterfaceKind.ETHERNET, 1000)
    c = online(profile("c"), InterfaceKind.ETHERNET, 10_000)
    found = decide(observed(cache(RESOLVED), needed=("a", "b", "c"), a=a, b=b, c=c))
    assert [name for name, source in sources(found).items() if source is CopySource.HUB] == ["c"]
    # One that has part of the files already goes on with them.
    a = online(profile("a", copy=CopyPhase.COPYING, done=GIB), InterfaceKind.WIFI)
    found = decide(observed(cache(RESOLVED), needed=("a", "b", "c"), a=a, b=b, c=c))
    assert [name for name, source in sources(found).items() if source is CopySource.HUB] == ["a"]
    # Only a Mac that shall hold the model fetches it.
    found = decide(observed(cache(RESOLVED), needed=("b",), a=a, b=b, c=c))
    assert sources(found) == {"b": CopySource.HUB}


def test_a_download_that_has_begun_stays_where_it_is() -> None:
    begun = profile("a", copy=CopyPhase.COPYING, done=GIB)
    found = decide(observed(cache(RESOLVED, copies=2), a=begun, b=profile("b", free=200 * GIB)))
    assert sources(found)["a"] is CopySource.HUB


def test_full_disks_and_stores_that_cannot_be_used_hold_nothing() -> None:
    found = decide(observed(cache(RESOLVED), a=profile("a", free=GIB), b=profile("b", problem="read-only")))
    assert found.status.assignments == ()
    assert reason(found, ConditionType.FETCHED) == Reason.NOTHING_TO_FETCH


def test_complete_copies_are_kept_and_shown() -> None:
    there = profile("b", free=0, copy=CopyPhase.COMPLETE, done=8 * GIB)
    found = decide(observed(cache(RESOLVED), a=profile("a"), b=there))
    assert sources(found) == {"b": CopySource.PEER}
    assert found.create is None
    assert reason(found, ConditionType.FETCHED) == Reason.FETCHED
    assert (found.status.copies, found.status.progress) == ("1/1", None)


def test_the_hub_is_read_once_unless_no_mac_can_give_the_model_away() -> None:
    there = profile("a", copy=CopyPhase.COMPLETE, done=8 * GIB)
    found = decide(observed(cache(RESOLVED, copies=2), a=there, b=profile("b")))
    assert sources(found) == {"a": CopySource.PEER, "b": CopySource.PEER}
    assert found.create is None
    lonely = profile("b", copy=CopyPhase.WAITING)
    copies = tuple(copy.model_copy(update={"reason": Reason.NO_SOURCE}) for copy in lonely.status.copies)
    lonely = lonely.model_copy(update={"status": lonely.status.model_copy(update={"copies": copies})})
    first = decide(observed(cache(RESOLVED, copies=2), a=there, b=lonely))
    assert sources(first)["b"] is CopySource.PEER
    later = replace(observed(cache(first.status.__dict__, copies=2), a=there, b=lonely), now=NOW + timedelta(seconds=90))
    assert sources(decide(later))["b"] is CopySource.HUB
    # One that only is not there yet is waited for.
    alone = decide(observed(cache(RESOLVED, copies=2), a=profile("a"), b=lonely))
    shown = next(copy for copy in alone.status.macs if copy.node == "b")
    assert (shown.reason, shown.message) == (None, "waits for a, which downloads it")


def test_a_mac_that_is_lost_in_the_middle_is_replaced_by_another_pod() -> None:
    away = [node("a", ready=False), node("b")]
    found = decide(observed(cache(RESOLVED, copies=2), [pod(Task.DOWNLOAD, "a")], nodes=away, a=profile("a"), b=profile("b")))
    assert sources(found)["b"] is CopySource.HUB
    assert [one.node for one in found.delete] == ["a"]


def test_a_pod_that_does_not_start_fails() -> None:
    found = decide(observed(cache(RESOLVED), [pod(Task.DOWNLOAD, phase="Pending", age=500)]))
    assert found.status.download is not None and found.status.download.attempts == 1
    assert len(found.delete) == 1


def test_no_mac_can_ask_the_hub() -> None:
    found = decide(observed(cache(), nodes=[node("a", ready=False), node("b", schedulable=False)]))
    assert found.create is None
    assert reason(found, ConditionType.RESOLVED) == Reason.NO_MAC_TO_FETCH


def test_only_signed_pods_are_the_operators() -> None:
    keys = Keyring(b"k" * 32)
    settings, hub = PodSettings("image"), HubSettings("https://hub.example", enabled=True)
    made = manifests.pod(cache(RESOLVED, token_secret="hub"), NewPod(Task.DOWNLOAD, "a", 0, STORE), settings, hub, keys)
    found = read_fetch_pod(made, keys)
    assert found is not None and (found.task, found.node, found.cache_uid) == (Task.DOWNLOAD, "a", UID)
    volumes = {volume["name"]: volume for volume in made["spec"]["volumes"]}
    assert volumes["token"]["secret"]["secretName"] == "hub"
    assert volumes["owned-staging"]["hostPath"]["path"] == f"{STORE}/.thunderfleet/staging/{UID}"
    assert made["spec"]["containers"][0]["env"] == [{"name": "HF_ENDPOINT", "value": "https://hub.example"}]
    assert read_fetch_pod(made, Keyring(b"x" * 32)) is None
    for change in ("/etc", f"{STORE}/models--o--n"):
        forged = {**made, "spec": {**made["spec"], "volumes": [{"name": "store", "hostPath": {"path": change}}]}}
        assert read_fetch_pod(forged, keys) is None
    other = {**made, "metadata": {**made["metadata"], "name": "tiny-download-other"}}
    assert read_fetch_pod(other, keys) is None


def test_paths_of_a_store() -> None:
    assert snapshot(STORE, "o/n", COMMIT) == f"{STORE}/models--o--n/snapshots/{COMMIT}"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "x" * 5000, '{"reason": "Resolved", "commit": "../x"}', '{"reason":"Resolved","model":"!!"}']
)
def test_what_is_no_result_is_none(text: str) -> None:
    assert FetchResult.parse(text) is None
