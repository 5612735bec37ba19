"""What is decided about models that are fetched: without clusters, from values to decisions."""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.kinds.modelcache import ModelCache, ModelCacheStatus
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import (
    Agent,
    Interface,
    InterfaceAddress,
    Model,
    ModelStore,
    Network,
    NodeProfile,
    NodeProfileStatus,
    PipelineSize,
)
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import AddressClass, ConditionType, Copies, CopyPhase, CopySource, InterfaceKind
from thunderfleet_crds.weights.copies import MacCopy, ModelCopy
from thunderfleet_crds.weights.parts import WeightFile
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.act.controllers.cache import CacheController
from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.placing.model import Resolution
from thunderfleet_operator.decide.weights import cache as decisions
from thunderfleet_operator.decide.weights import manifests
from thunderfleet_operator.decide.weights.cache import CacheDecision, decide
from thunderfleet_operator.decide.weights.deployment import needed, resolution
from thunderfleet_operator.decide.weights.manifests import HubSettings, NewPod
from thunderfleet_operator.decide.weights.status import progress
from thunderfleet_operator.decide.weights.uplink import uplink_mbps
from thunderfleet_operator.observe.fleet.weights import Need, Weights, WeightsFleets, needed_by, part_path, snapshot
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.fetchpods import FetchPod, Task, read_fetch_pod
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.observe.observed import ObservedCache
from thunderfleet_operator.placement import Fleet, Mac

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
    needed: Sequence[str] | Mapping[str, Need] = (),
    nodes: Sequence[Node] | None = None,
    there: Mapping[str, NodeProfile] | None = None,
    **profiles: NodeProfile,
) -> ObservedCache:
    known = there or profiles or {"a": profile("a"), "b": profile("b")}
    macs = {entry.name: entry for entry in nodes or [node(name) for name in known]}
    needs = needed if isinstance(needed, Mapping) else {name: Need(True) for name in needed}
    return ObservedCache(one, pods, macs, known, needs, NOW)


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
    # The column MESSAGE has the message of the condition Fetched.
    shown = find_condition(failed.status.conditions, ConditionType.FETCHED)
    assert shown is not None and shown.reason == Reason.NOT_RESOLVED and shown.message.startswith(f"{why}: ")
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
    # It keeps downloading when its agent no longer looks for other Macs, until it has the files or another one gives them.
    loading = profile("b", copy=CopyPhase.COPYING, done=GIB)
    loads = observed(cache(decide(later).status.__dict__, copies=2), a=there, b=loading)
    for seconds in (91, 600):
        downloads = replace(loads, now=NOW + timedelta(seconds=seconds))
        assert sources(decide(downloads))["b"] is CopySource.HUB
    has = observed(cache(decide(later).status.__dict__, copies=2), a=there, b=profile("b", copy=CopyPhase.COMPLETE))
    found = decide(has)
    assert sources(found)["b"] is CopySource.PEER and found.create is None
    # One that only is not there yet is waited for.
    alone = decide(observed(cache(RESOLVED, copies=2), a=profile("a"), b=lonely))
    shown = next(copy for copy in alone.status.macs if copy.node == "b")
    assert (shown.reason, shown.message) == (None, "waiting for a, which downloads the model")


def test_a_mac_that_is_lost_in_the_middle_is_replaced_by_another_pod() -> None:
    away = [node("a", ready=False), node("b")]
    found = decide(observed(cache(RESOLVED, copies=2), [pod(Task.DOWNLOAD, "a")], nodes=away, a=profile("a"), b=profile("b")))
    assert sources(found)["b"] is CopySource.HUB
    assert [one.node for one in found.delete] == ["a"]


def test_a_server_whose_bytes_stay_wrong_needs_a_person() -> None:
    wrong, status, now = FetchResult(Reason.WRONG_BYTES, "wrong").text, cache(RESOLVED).status, NOW
    stalled = []
    for _ in range(8):
        failed = observed(cache(status.__dict__), [pod(Task.DOWNLOAD, message=wrong, phase="Failed")], needed=("a",))
        found = decide(replace(failed, now=now))
        assert reason(found, ConditionType.FETCHED) == Reason.WRONG_BYTES
        stalled.append(reason(found, ConditionType.STALLED))
        status, now = found.status, now + timedelta(seconds=120)
    assert stalled == ["AsExpected"] * 5 + ["WrongBytes"] * 3


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


def test_pods_reach_the_hub_as_the_settings_say() -> None:
    settings = HubSettings("https://mirror.example", "http://proxy.example:3128", "localhost,10.0.0.0/8", enabled=True)
    made = manifests.pod(
        cache(RESOLVED), NewPod(Task.DOWNLOAD, "a", 0, STORE), PodSettings("image"), settings, Keyring(b"k" * 32)
    )
    (container,) = made["spec"]["containers"]
    assert {one["name"]: one["value"] for one in container["env"]} == {
        "HF_ENDPOINT": "https://mirror.example",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "HTTP_PROXY": "http://proxy.example:3128",
        "NO_PROXY": "localhost,10.0.0.0/8",
    }


# --- parts of a model ------------------------------------------------------------------------------------------------

FILES = (
    WeightFile(file=1, bytes=GIB, shared=True),
    WeightFile(file=2, bytes=2 * GIB, layers="0"),
    WeightFile(file=3, bytes=2 * GIB, layers="1-2"),
    WeightFile(file=4, bytes=2 * GIB, layers="3"),
)
"""Of a model with six files: the first and the last are no weights."""
SIZED = MODEL.model_copy(update={"pipeline": PipelineSize(layer_bytes=(2 * GIB,) * 4)})
IN_PARTS = {**RESOLVED, "files": 6, "weight_files": FILES, "model": SIZED}
FIRST, LAST = Need(False, frozenset({0, 1})), Need(False, frozenset({2, 3}))


def holder(name: str, layers: str, phase: CopyPhase = CopyPhase.PART) -> NodeProfile:
    found = profile(name, copy=phase, done=5 * GIB)
    copies = tuple(copy.model_copy(update={"layers": layers, "bytes": 5 * GIB}) for copy in found.status.copies)
    return found.model_copy(update={"status": found.status.model_copy(update={"copies": copies})})


def assigned(decision: CacheDecision) -> dict[str, tuple[str | None, str | None]]:
    return {one.node: (one.layers, one.files) for one in decision.status.assignments}


def test_each_mac_shall_hold_the_files_of_its_layers_and_one_that_two_need_is_with_both() -> None:
    found = decide(observed(cache(IN_PARTS, copies=0), needed={"a": FIRST, "b": LAST}))
    assert assigned(found) == {"a": ("0-1", "0-3,5"), "b": ("2-3", "0-1,3-5")}
    assert {copy.node: copy.bytes for copy in found.status.macs} == {"a": 6 * GIB, "b": 6 * GIB}
    assert found.create == NewPod(Task.DOWNLOAD, "a", 0, STORE, "0-3,5")


def test_the_next_mac_downloads_what_no_other_one_has() -> None:
    parts = observed(cache(IN_PARTS, copies=0), needed={"a": FIRST, "b": LAST}, a=holder("a", "0-1"), b=profile("b"))
    found = decide(parts)
    assert sources(found) == {"a": CopySource.PEER, "b": CopySource.HUB}
    assert found.create == NewPod(Task.DOWNLOAD, "b", 0, STORE, "0-1,3-5")
    assert reason(found, ConditionType.FETCHED) == Reason.FETCHING


def test_parts_of_other_macs_together_are_a_source() -> None:
    there = {"a": holder("a", "0-1"), "b": holder("b", "2-3"), "c": profile("c")}
    moved = Need(False, frozenset({1, 2}))
    found = decide(observed(cache(IN_PARTS, copies=0), needed={"c": moved}, there=there))
    assert (sources(found), found.create) == ({"c": CopySource.PEER}, None)
    # All files: those without weights, too, are on a Mac with any part.
    whole = decide(observed(cache(IN_PARTS, copies=0), needed={"c": Need(True)}, there=there))
    assert (sources(whole), whole.create) == ({"c": CopySource.PEER}, None)
    away = [node("a"), node("b", ready=False), node("c")]
    lost = decide(observed(cache(IN_PARTS, copies=0), needed={"c": Need(True)}, nodes=away, there=there))
    assert sources(lost) == {"c": CopySource.HUB}


def test_a_part_is_no_copy_of_the_model() -> None:
    found = decide(observed(cache(IN_PARTS, copies=1), needed={"a": FIRST}, a=holder("a", "0-1"), b=profile("b", free=0)))
    assert assigned(found) == {"a": ("0-1", None)}
    assert found.status.copies == "0/1"
    assert reason(found, ConditionType.FETCHED) == Reason.FETCHING


def test_layers_that_move_to_a_mac_are_fetched_although_its_agent_says_that_it_has_its_part() -> None:
    moved = {"a": FIRST, "b": Need(False, frozenset({1, 2, 3}))}
    found = decide(observed(cache(IN_PARTS, copies=0), needed=moved, a=holder("a", "0-1"), b=holder("b", "2-3")))
    assert assigned(found)["b"] == ("1-3", "0-1,3-5")
    shown = {copy.node: copy.phase for copy in found.status.macs}
    assert shown == {"a": CopyPhase.PART, "b": CopyPhase.WAITING}
    assert found.status.copies == "1/2"


@pytest.mark.parametrize("need", [Need(True), Need(True, frozenset(range(4))), Need(False, frozenset(range(4)))])
def test_a_mac_that_gets_the_layers_of_another_one_copies_them_from_it(need: Need) -> None:
    """The other one does not have the files that this one has already."""
    there = {"a": holder("a", "0-1"), "b": holder("b", "2-3")}
    found = decide(observed(cache(IN_PARTS, copies=0), needed={"a": need}, there=there))
    assert (sources(found), found.create) == ({"a": CopySource.PEER}, None)
    away = [node("a"), node("b", ready=False)]
    lost = decide(observed(cache(IN_PARTS, copies=0), needed={"a": need}, nodes=away, there=there))
    assert sources(lost) == {"a": CopySource.HUB}
    # One that has all files in its part asks nobody.
    own = decide(observed(cache(IN_PARTS, copies=0), needed={"a": need}, nodes=away, there={**there, "a": holder("a", "0-3")}))
    assert own.create is None


def test_parts_that_are_there_are_fetched() -> None:
    there = {"a": holder("a", "0-1"), "b": holder("b", "0,2-3")}
    found = decide(observed(cache(IN_PARTS, copies=0), needed={"a": FIRST, "b": LAST}, there=there))
    assert found.create is None and reason(found, ConditionType.FETCHED) == Reason.FETCHED
    assert "a (layers 0-1)" in str(find_condition(found.status.conditions, ConditionType.FETCHED))


def rank_plan(path: str, layers: Sequence[tuple[int, int] | None]) -> Plan:
    ranks = [
        {"rank": number, "node": "ab"[number], "pod": "p", "address": "10.0.0.1", "controlPort": 1, "gatewayPort": 2}
        | {"ringAddress": "10.0.0.1", "ringPorts": [3], "layers": held, "memoryBytes": 1}
        for number, held in enumerate(layers)
    ]
    return Plan.model_validate(
        {"namespace": "ns", "deployment": "d", "uid": "u", "index": 0, "epoch": 1, "model": "m", "modelPath": path}
        | {"backend": "ring" if len(ranks) > 1 else "none", "split": "Pipeline" if len(ranks) > 1 else "None", "ranks": ranks}
        | {"memory": {"contextTokens": 1, "concurrentRequests": 1, "cachedTokens": 0}}
    )


def test_what_macs_need_follows_from_the_plans() -> None:
    one = cache(IN_PARTS)
    part, whole = part_path(STORE, DIGEST), snapshot(STORE, "o/n", COMMIT)
    halves = rank_plan(part, [(2, 4), (0, 2)])
    assert needed_by([halves], one) == {"a": LAST, "b": FIRST}
    # One Mac with the whole model needs every file, and reads it from the same folder.
    assert needed_by([halves, rank_plan(part, [None])], one)["a"] == Need(True, frozenset(range(4)))
    assert needed_by([rank_plan(whole, [None]), rank_plan("/other", [None])], one) == {"a": Need(True)}


def test_a_group_starts_when_its_own_layers_are_there() -> None:
    one, path = cache(IN_PARTS), part_path(STORE, DIGEST)
    plan = rank_plan(path, [(2, 4), (0, 2)])
    there = {"a": (path, frozenset({2, 3})), "b": (path, frozenset({0}))}
    assert Weights(one, {}, there).waits_for(plan.model_path, plan.ranks) == ("b",)
    assert Weights(one, {}, {**there, "b": (path, frozenset({0, 1}))}).waits_for(plan.model_path, plan.ranks) == ()
    # A part is no model for another group, which reads the folder of the commit.
    other = snapshot(STORE, "o/n", COMMIT)
    plan = rank_plan(other, [(2, 4), (0, 2)])
    assert Weights(one, {"a": other, "b": other}).waits_for(plan.model_path, plan.ranks) == ("a", "b")


@pytest.mark.parametrize("copies", Copies)
def test_a_group_waits_for_its_files_although_the_spec_asks_for_other_copies_now(copies: Copies) -> None:
    mac = Mac("a", "10.0.0.1", 9 * GIB, allocatable_bytes=9 * GIB, store=STORE, store_bytes=9 * GIB)
    _, weights = WeightsFleets().of("k", Fleet([mac]), {}, cache(IN_PARTS), copies)
    for path in (part_path(STORE, DIGEST), snapshot(STORE, "o/n", COMMIT)):
        plan = rank_plan(path, [(0, 4)])
        assert weights.waits_for(plan.model_path, plan.ranks) == ("a",), path


def test_layers_that_are_no_ranges_are_none() -> None:
    found = decide(observed(cache(IN_PARTS, copies=0), needed={"a": FIRST}, a=holder("a", "9-1")))
    assert [copy.phase for copy in found.status.macs] == [CopyPhase.WAITING]


@pytest.mark.parametrize(
    ("disk", "memory", "copies", "usable"),
    [
        # A part of 2 GiB of memory takes at most 2 GiB, two more files of 2 GiB, and what is no weights.
        (7 * GIB, 2 * GIB, Copies.SHARD, True),
        (6 * GIB, 2 * GIB, Copies.SHARD, False),
        (7 * GIB, 9 * GIB, Copies.SHARD, False),
        (8 * GIB, 9 * GIB, Copies.SHARD, True),
        (7 * GIB, 2 * GIB, Copies.WHOLE, False),
    ],
)
def test_a_mac_needs_disk_for_what_its_memory_can_hold(disk: int, memory: int, copies: Copies, usable: bool) -> None:
    mac = Mac("a", "10.0.0.1", memory, allocatable_bytes=memory, store=STORE, store_bytes=disk)
    fleet, _ = WeightsFleets().of("k", Fleet([mac]), {}, cache(IN_PARTS), copies)
    (model,) = fleet.macs["a"].models
    assert model.complete == usable
    assert model.path == (part_path(STORE, DIGEST) if copies is Copies.SHARD else snapshot(STORE, "o/n", COMMIT))


@pytest.mark.parametrize(
    ("disk", "copies", "usable"), [(2, Copies.WHOLE, False), (3, Copies.WHOLE, True), (0, Copies.SHARD, True)]
)
def test_a_mac_with_a_part_needs_disk_for_the_rest_of_the_model(disk: int, copies: Copies, usable: bool) -> None:
    mac = Mac("a", "10.0.0.1", 9 * GIB, allocatable_bytes=9 * GIB, store=STORE, store_bytes=disk * GIB)
    fleet, _ = WeightsFleets().of("k", Fleet([mac]), {"a": holder("a", "0-1")}, cache(IN_PARTS), copies)
    (model,) = fleet.macs["a"].models
    assert model.complete == usable


def test_a_model_that_was_resolved_before_parts_says_how_to_get_them() -> None:
    _, weights = WeightsFleets().of("k", Fleet(), {}, cache({**RESOLVED, "files": 6, "model": SIZED}), Copies.SHARD)
    found = resolution(weights, Resolution(False, Reason.MODEL_NOT_FOUND, ""), Copies.SHARD)
    assert "an earlier version of Thunderfleet resolved the model and did not record the layers" in found.message
    assert "in its files; delete the ModelCache" in found.message


def test_a_model_without_parts_is_fetched_whole_and_the_condition_says_why() -> None:
    known = {**RESOLVED, "files": 6, "model": SIZED, "no_parts": "a tensor is in two files"}
    _, weights = WeightsFleets().of("k", Fleet(), {}, cache(known), Copies.SHARD)
    found = resolution(weights, Resolution(False, Reason.MODEL_NOT_FOUND, ""), Copies.SHARD)
    assert found.found and found.message.endswith("although spec.model.copies is Shard: a tensor is in two files")
    assert "Shard" not in resolution(weights, Resolution(False, Reason.MODEL_NOT_FOUND, "")).message


def test_the_files_of_parts_fit_into_a_result_or_are_left_out() -> None:
    files = tuple(WeightFile(file=number, bytes=5 * GIB - number, layers=f"{number}-{number + 1}") for number in range(163))
    result = FetchResult(Reason.RESOLVED, commit=COMMIT, manifest=DIGEST, model=MODEL, weight_files=files)
    assert FetchResult.parse(result.text) == result
    many = tuple(WeightFile(file=number, bytes=number * 2654435761 % GIB, layers=str(number % 400)) for number in range(1000))
    cut = FetchResult.parse(replace(result, weight_files=many).text)
    assert cut is not None and cut.weight_files == () and "1000 weight files" in cut.no_parts


@pytest.mark.parametrize("listed", [[[1, 2, "3-1", 0]], [[1, 2, "../x", 0]], [[1, 2, "0", 0]] * 2, [[-1, 2, "0", 0]], [1], {}])
def test_hostile_lists_of_files_are_no_result(listed: object) -> None:
    packed = base64.b85encode(zlib.compress(json.dumps(listed).encode())).decode()
    assert FetchResult.parse(json.dumps({"reason": "Resolved", "parts": packed})) is None


def test_paths_of_a_store() -> None:
    assert snapshot(STORE, "o/n", COMMIT) == f"{STORE}/models--o--n/snapshots/{COMMIT}"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "x" * 5000, '{"reason": "Resolved", "commit": "../x"}', '{"reason":"Resolved","model":"!!"}']
)
def test_what_is_no_result_is_none(text: str) -> None:
    assert FetchResult.parse(text) is None


@pytest.mark.parametrize(
    ("macs", "enabled", "said"),
    [
        ((Mac("a", "1", 1, store=STORE),), True, "ModelCache tiny was created; no Mac has the model, so it is fetched"),
        ((Mac("a", "1", 1, store=STORE), Mac("b", "2", 1, profiled=False)), True, "it is fetched if b does not have it either"),
        ((Mac("a", "1", 1), Mac("b", "2", 1, profiled=False)), True, "it is fetched if a, b do not have it either"),
        ((Mac("a", "1", 1, store=STORE),), False, "copy it"),
        ((Mac("a", "1", 1, ready=False, store=STORE),), True, "copy it"),
        ((Mac("a", "1", 1),), True, "copy it"),
    ],
)
def test_nobody_is_asked_to_copy_a_model_that_will_be_fetched(macs: tuple[Mac, ...], enabled: bool, said: str) -> None:
    metadata = {"name": "tiny", "namespace": "ns", "uid": UID, "generation": 1}
    deployment = ModelDeployment.load({"metadata": metadata, "spec": {"model": {"repository": "o/n"}}})
    without = Resolution(False, Reason.MODEL_NOT_FOUND, "copy it")
    hub = HubSettings("https://hub.example", enabled=enabled)
    found = needed(deployment, Fleet(macs), Weights(), hub, found=False, unplaced=True, taken=False)
    shown = resolution(Weights(), without, coming=found.coming)
    assert said in shown.message
    assert shown.reason == (Reason.MODEL_NOT_FOUND if said == "copy it" else Reason.RESOLVING)
    there = Resolution(True, Reason.FOUND, "at /models")
    assert resolution(Weights(), there, coming=found.coming) == there


class Refusing:
    """Writes the status, and no pod."""

    def __init__(self, known: ModelCache) -> None:
        self.known = known
        self.written: list[ModelCacheStatus] = []

    async def create(self, *_: object) -> None:
        raise ApiError(403, "Forbidden", "exceeded quota")

    async def apply_status(self, _: object, body: dict[str, Any]) -> None:
        self.written.append(ModelCacheStatus.load(body["status"]))
        self.known = self.known.model_copy(update={"status": self.written[-1]})


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"source": CopySource.HUB}, "a 25 % of 8Gi, from the hub"),
        (
            {"source": CopySource.PEER, "peer": "b", "link": "a.tb1--b.tb1", "bytes_per_second": 2_500_000, "seconds_left": 90},
            "a 25 % of 8Gi, from b over a.tb1--b.tb1, 2.5 MB/s, 90 s left",
        ),
        (
            {"source": CopySource.PEER, "peer": "b", "bytes_per_second": 1234, "seconds_left": 7300},
            "a 25 % of 8Gi, from b over the LAN, 1.2 kB/s, 2 h 1 min left",
        ),
        ({"source": CopySource.PEER, "message": "waiting for b"}, "a 25 % of 8Gi, waiting for b"),
    ],
)
def test_the_progress_of_a_copy_in_words(about: dict[str, Any], expected: str) -> None:
    assert progress(MacCopy(node="a", phase=CopyPhase.COPYING, bytes=8 * GIB, bytes_done=2 * GIB, **about)) == expected


class Writing(Refusing):
    """Writes pods too."""

    async def create(self, *_: object) -> None:
        pass


async def test_progress_alone_is_written_every_five_seconds_at_most_and_another_phase_at_once() -> None:
    writer, seconds = Writing(cache(RESOLVED, copies=1)), [100.0]
    copy = {"a": profile("a")}
    index = SimpleNamespace(caches={}, plans={}, fetch_pods_of={}, live_nodes={"a": node("a")}, profiles=copy)
    controller = CacheController(
        cast(Index, index),
        cast(Writer, writer),
        PodSettings("image"),
        HubSettings("https://hub.example", enabled=True),
        lambda: Keyring(b"k" * 32),
        lambda: NOW,
        lambda: seconds[0],
    )

    async def round(after: float, phase: CopyPhase, done: int) -> tuple[float | None, int]:
        """Seconds until the next round, and the bytes that the status shows."""
        seconds[0] += after
        copy["a"] = profile("a", copy=phase, done=done)
        index.caches = {"ns/tiny": writer.known}
        wait = await controller.round("ns/tiny")
        return wait, writer.known.status.macs[0].bytes_done

    await round(0, CopyPhase.COPYING, GIB)
    first = len(writer.written)
    assert (await round(1, CopyPhase.COPYING, 2 * GIB), len(writer.written)) == ((4.0, GIB), first)
    assert (await round(3.5, CopyPhase.COPYING, 3 * GIB), len(writer.written)) == ((0.5, GIB), first)
    assert (await round(0.5, CopyPhase.COPYING, 4 * GIB))[1] == 4 * GIB
    assert len(writer.written) == first + 1
    assert (await round(0.1, CopyPhase.CHECKING, 5 * GIB))[1] == 5 * GIB
    assert (await round(0.1, CopyPhase.COMPLETE, 8 * GIB))[1] == 8 * GIB
    assert len(writer.written) == first + 3


async def test_a_pod_that_the_api_server_refuses_needs_a_person_and_nothing_is_written_again() -> None:
    writer = Refusing(cache())
    now = [NOW]

    async def round() -> dict[str, tuple[str, str]]:
        nodes, profiles = {"a": node("a")}, {"a": profile("a")}
        index = SimpleNamespace(
            caches={"ns/tiny": writer.known}, plans={}, fetch_pods_of={}, live_nodes=nodes, profiles=profiles
        )
        controller = CacheController(
            cast(Index, index),
            cast(Writer, writer),
            PodSettings("image"),
            HubSettings("https://hub.example", enabled=True),
            lambda: Keyring(b"k" * 32),
            lambda: now[0],
        )
        await controller.round("ns/tiny")
        return {one.type: (one.status, one.reason) for one in writer.known.status.conditions}

    expected = {
        "Fetched": ("False", "DownloadFailed"),
        "Reconciling": ("False", "ActionRequired"),
        "Resolved": ("False", "DownloadFailed"),
        "Stalled": ("True", "DownloadFailed"),
    }
    assert await round() == expected
    stalled = find_condition(writer.known.status.conditions, ConditionType.STALLED)
    assert stalled is not None and "exceeded quota" in stalled.message
    now[0] += timedelta(seconds=30)
    assert await round() == expected
    assert len(writer.written) == 1
