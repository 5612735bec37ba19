"""What is decided about a ModelCache whose repository is quantized: from values to decisions, round by round."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.kinds.modelcache import ModelCache, QuantizedFrom
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.meta.fields import binary_size
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionType, CopyPhase, CopySource
from thunderfleet_crds.weights.copies import ModelCopy
from thunderfleet_crds.weights.quantization import Quantize, conversion_id, kept_name
from thunderfleet_lib.modelstore.manifest import check_repository
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.placing.model import Resolution
from thunderfleet_operator.decide.placing.request import request
from thunderfleet_operator.decide.weights import manifests, quantizing
from thunderfleet_operator.decide.weights.cache import CacheDecision, decide
from thunderfleet_operator.decide.weights.deployment import resolution, shown
from thunderfleet_operator.decide.weights.manifests import NO_HUB, NewPod
from thunderfleet_operator.observe.fleet.weights import Weights, WeightsFleets, of_deployment
from thunderfleet_operator.observe.objects.fetchpods import FetchPod, Task, read_fetch_pod
from thunderfleet_operator.observe.objects.pods import pod_memory
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.placement import Fleet, Mac

from tests.unit.operator.status import test_progress as progress
from tests.unit.operator.weights.test_weights import COMMIT, DIGEST, GIB, MODEL, NOW, STORE, UID, cache, node, observed, profile

HOW = Quantize(bits=4, group_size=64)
SOURCE_DIGEST, MADE = "e" * 64, "f" * 64
SOURCE = QuantizedFrom(commit=COMMIT, manifest=SOURCE_DIGEST, bytes=16 * GIB, quantized_bytes=4 * GIB)
FROM = "o/n@main to 4 bits in groups of 64"
RESULT = FetchResult(Reason.QUANTIZED, commit=MADE, manifest=DIGEST, files=4, bytes=4 * GIB, model=MODEL, mlx_lm="0.32.2").text
DONE = {"commit": MADE, "manifest": DIGEST, "files": 4, "bytes": 4 * GIB, "model": MODEL}


def quantized(node_name: str | None = None, **status: Any) -> ModelCache:
    source = SOURCE.model_copy(update={"node": node_name})
    return cache({"resolved_from": FROM, "quantized_from": source, **status}, quantize=HOW, copies=0)


def pod(task: Task, at: str = "a", message: str = "", phase: str = "Running", age: float = 5.0) -> FetchPod:
    arguments: tuple[str, ...] = ("--repository", "o/n", "--revision", "main", "--bits", "4", "--group-size", "64")
    if task is Task.QUANTIZE:
        arguments = quantizing.arguments(quantized(), SOURCE)
    return FetchPod(
        "p", "ns", "u", "ns/tiny", UID, task, arguments, at, phase, False, message, "", NOW - timedelta(seconds=age)
    )


def stalled(decision: CacheDecision) -> tuple[str, str]:
    found = find_condition(decision.status.conditions, ConditionType.STALLED)
    assert found is not None
    return found.status, found.reason


def condition(decision: CacheDecision) -> tuple[str, str]:
    found = find_condition(decision.status.conditions, ConditionType.RESOLVED)
    assert found is not None
    return found.reason, found.message


def after(one: ModelCache, decision: CacheDecision) -> ModelCache:
    return one.model_copy(update={"status": decision.status})


def test_a_repository_is_resolved_then_quantized_on_one_mac_then_copied() -> None:
    one = cache(quantize=HOW, copies=0)
    first = decide(observed(one))
    assert first.create == NewPod(Task.RESOLVE, "a", 0)
    found = FetchResult(
        Reason.RESOLVED, commit=COMMIT, manifest=SOURCE_DIGEST, files=4, bytes=16 * GIB, quantized_bytes=4 * GIB
    )
    resolved = decide(observed(after(one, first), [pod(Task.RESOLVE, message=found.text, phase="Succeeded")]))
    assert resolved.status.quantized_from == SOURCE
    # Nothing can be placed on files that do not exist.
    assert resolved.status.commit is None and resolved.status.manifest is None and not resolved.status.assignments
    began = decide(observed(after(one, resolved)))
    assert began.create == NewPod(Task.QUANTIZE, "a", 0, STORE)
    assert began.status.quantized_from is not None and began.status.quantized_from.node == "a"
    running = decide(observed(after(one, began), [pod(Task.QUANTIZE)]))
    assert running.create is None and not running.delete and condition(running)[0] == Reason.QUANTIZING
    ended = decide(observed(after(one, running), [pod(Task.QUANTIZE, message=RESULT, phase="Succeeded")]))
    status = ended.status
    assert (status.commit, status.manifest, status.model, status.bytes) == (MADE, DIGEST, MODEL, 4 * GIB)
    assert status.quantized_from is not None and status.quantized_from.mlx_lm == "0.32.2"
    assert condition(ended) == (
        Reason.QUANTIZED,
        f"o/n, revision main, commit {COMMIT}, was quantized to 4 bits in groups of 64 by mlx-lm 0.32.2: 4 files, 4Gi",
    )
    # Its agent takes over what the pod has left; a Mac of a group copies it from there.
    copied = decide(observed(after(one, ended), needed=["b"]))
    assert copied.create is None
    assert {entry.node: entry.source for entry in copied.status.assignments} == {"a": CopySource.HUB, "b": CopySource.PEER}
    there = {"a": profile("a", copy=CopyPhase.COMPLETE, done=4 * GIB), "b": profile("b")}
    kept = decide(observed(after(one, copied), needed=["b"], there=there))
    assert {entry.node: entry.source for entry in kept.status.assignments} == {"a": CopySource.PEER, "b": CopySource.PEER}
    both = {name: profile(name, copy=CopyPhase.COMPLETE, done=4 * GIB) for name in "ab"}
    assert [entry.node for entry in decide(observed(after(one, kept), needed=["b"], there=both)).status.assignments] == ["b"]


def reporting(name: str, phase: CopyPhase = CopyPhase.QUANTIZING) -> NodeProfile:
    copy = ModelCopy(
        repository=kept_name("o/n", HOW), commit=COMMIT, manifest=conversion_id(SOURCE_DIGEST, HOW), phase=phase,
        bytes=4 * GIB, bytes_done=GIB, bytes_per_second=10**8, seconds_left=30, source=CopySource.HUB,
        message="mlx-lm writes the quantized weights",
    )  # fmt: skip
    found = profile(name)
    return found.model_copy(update={"status": found.status.model_copy(update={"copies": (copy,)})})


def deployment(**model: Any) -> ModelDeployment:
    spec = {"model": {"repository": "o/n", **model}}
    return ModelDeployment.load({"metadata": {"name": "tiny", "namespace": "ns", "uid": "d"}, "spec": spec})


def test_the_progress_is_in_the_status_of_both_kinds() -> None:
    one = quantized("a")
    running = decide(observed(one, [pod(Task.QUANTIZE)], there={"a": reporting("a"), "b": profile("b")}))
    assert [(copy.node, copy.phase, copy.bytes_done) for copy in running.status.macs] == [("a", CopyPhase.QUANTIZING, GIB)]
    # Hours of work are no fault.
    hours = replace(observed(after(one, running), [pod(Task.QUANTIZE)]), now=NOW + timedelta(hours=5))
    assert stalled(decide(hours))[0] == "False"
    assert running.status.progress == "25% of 4Gi 100.0 MB/s 30 s left"
    text = "being quantized on a, 25 % of 4Gi, 100.0 MB/s, 30 s left, mlx-lm writes the quantized weights"
    assert condition(running) == (Reason.QUANTIZING, f"o/n, revision main, commit {COMMIT}, to 4 bits in groups of 64: {text}")
    weights = Weights(after(one, running))
    assert shown(weights) == {"commit": COMMIT, "copies": running.status.macs, "weights": running.status.progress}
    waits = resolution(weights, Resolution(False, Reason.MODEL_NOT_FOUND, "nowhere"))
    assert (waits.found, waits.reason) == (False, Reason.QUANTIZING) and text in waits.message


@pytest.mark.parametrize(
    ("result", "reason", "at"),
    [
        ("Killed: 9", Reason.DOWNLOAD_FAILED, "a"),
        (FetchResult(Reason.HUB_UNREACHABLE, "away").text, Reason.HUB_UNREACHABLE, "a"),
        (FetchResult(Reason.DISK_FULL, "full").text, Reason.DISK_FULL, "b"),
    ],
)
def test_a_pod_that_failed_is_continued_where_it_was(result: str, reason: Reason, at: str) -> None:
    one = quantized("a")
    failed = decide(observed(one, [pod(Task.QUANTIZE, message=result, phase="Failed")]))
    assert failed.create is None and condition(failed)[0] == reason
    due = replace(observed(after(one, failed)), now=NOW + timedelta(hours=1))
    again = decide(due)
    assert again.create == NewPod(Task.QUANTIZE, at, 1, STORE)
    # While it runs, its progress is shown.
    assert condition(decide(replace(due, cache=after(one, again), pods=(pod(Task.QUANTIZE, at),))))[0] == Reason.QUANTIZING


def test_a_refusal_is_tried_again_rarely_and_a_mac_that_starts_nothing_is_left() -> None:
    one = quantized("a")
    refused = FetchResult(Reason.QUANTIZATION_REFUSED, "no such architecture").text
    failed = decide(observed(one, [pod(Task.QUANTIZE, message=refused, phase="Failed")]))
    assert failed.status.download is not None and failed.status.download.next_time == NOW + timedelta(seconds=300)
    assert stalled(failed) == ("True", Reason.QUANTIZATION_REFUSED)
    stuck = decide(observed(one, [pod(Task.QUANTIZE, phase="Pending", age=500)]))
    assert stuck.status.quantized_from is not None and stuck.status.quantized_from.node is None
    assert [entry.name for entry in stuck.delete] == ["p"]


def test_one_failure_after_hours_of_work_is_not_stalled() -> None:
    """Neither for the ModelCache nor for the ModelDeployment that waits for it."""
    working = after(quantized("a"), decide(observed(quantized("a"), [pod(Task.QUANTIZE)])))
    hours = NOW + timedelta(hours=3)
    ended = replace(observed(working, [pod(Task.QUANTIZE, message="Killed: 9", phase="Failed")]), now=hours)
    failed = decide(ended)
    assert condition(failed)[0] == Reason.DOWNLOAD_FAILED and stalled(failed) == ("False", Reason.AS_EXPECTED)
    found = resolution(Weights(after(working, failed)), Resolution(False, Reason.MODEL_NOT_FOUND, "on no Mac"))
    waits = progress.after(None, [progress.UNPLACED], found=Resolution(False, Reason.QUANTIZING, "works"))
    assert progress.shown(progress.after(waits, [progress.UNPLACED], found=found, now=hours)) == progress.WORKS
    # It fails again and again.
    for attempt in range(1, 6):
        again = replace(ended, cache=after(working, failed), now=hours + timedelta(minutes=2 * attempt))
        failed = decide(again)
    assert stalled(failed) == ("True", Reason.DOWNLOAD_FAILED)
    lasts = resolution(Weights(after(working, failed)), Resolution(False, Reason.MODEL_NOT_FOUND, "on no Mac"))
    assert progress.shown(progress.after(waits, [progress.UNPLACED], found=lasts))[2:] == ("True", "DownloadFailed")


def test_a_mac_without_room_is_not_chosen() -> None:
    small, large = profile("a", free=20 * GIB), profile("b", free=22 * GIB)
    assert (found := decide(observed(quantized(), a=small, b=large)).create) is not None and found.node == "b"
    none = decide(observed(quantized(), a=small))
    assert none.create is None
    reason, message = condition(none)
    assert reason == Reason.NO_MAC_TO_FETCH and "no Ready Mac has 21Gi of disk space" in message


def test_a_mac_without_memory_for_the_pod_is_not_chosen() -> None:
    """The scheduler would let the pod wait there."""
    needed = quantizing.memory_bytes(SOURCE)
    seen = replace(observed(quantized(), a=profile("a"), b=profile("b")), free_memory={"a": needed - 1, "b": needed})
    assert (found := decide(seen).create) is not None and found.node == "b"
    nowhere = decide(replace(seen, free_memory={"a": needed - 1, "b": 0}))
    assert nowhere.create is None
    reason, message = condition(nowhere)
    assert reason == Reason.NO_MAC_TO_FETCH and f"has {binary_size(needed)} of memory for a pod" in message
    assert decide(replace(seen, cache=after(quantized(), nowhere), free_memory={"a": needed})).create is not None


def test_a_mac_that_did_not_start_the_pod_comes_last() -> None:
    one = quantized("a")
    stuck = decide(observed(one, [pod(Task.QUANTIZE, phase="Pending", age=500)]))
    due = replace(observed(after(one, stuck)), now=NOW + timedelta(hours=1))
    assert (found := decide(due).create) is not None and found.node == "b"
    # A fleet of one Mac tries it again.
    only = replace(due, nodes={"a": node("a")}, profiles={"a": profile("a")})
    assert (found := decide(only).create) is not None and found.node == "a"


def test_a_mac_that_is_away_is_waited_for_as_long_as_quantizing_again_takes() -> None:
    nodes = [node("a", ready=False), node("b")]
    waiting = profile("b", copy=CopyPhase.WAITING)
    (copy,) = waiting.status.copies
    alone = copy.model_copy(update={"reason": Reason.NO_SOURCE, "message": "no Mac that has it answers"})
    macs = {
        "a": profile("a", copy=CopyPhase.COMPLETE, done=4 * GIB),
        "b": waiting.model_copy(update={"status": waiting.status.model_copy(update={"copies": (alone,)})}),
    }
    large = SOURCE.model_copy(update={"bytes": 500 * 10**9, "node": "a"})
    one = quantized("a", **DONE)
    one = one.model_copy(update={"status": one.status.model_copy(update={"quantized_from": large})})
    first = later(one, 0, nodes, **macs)
    assert first.status.manifest == DIGEST
    waits = {copy.node: copy.message for copy in first.status.macs}["b"]
    only, then = (
        "waiting for a, which has the only copy and cannot be reached",
        "the repository is quantized again at 05:50:45 UTC",
    )
    assert waits == f"{only}; if that persists, {then}"
    assert later(after(one, first), 9999, nodes, **macs).status.manifest == DIGEST
    assert later(after(one, first), 10_000, nodes, **macs).status.manifest is None
    # Nothing comes back from a Node that was deleted, or from a Mac that has lost the files.
    assert later(after(one, first), 300, nodes[1:], **macs).status.manifest is None
    emptied = {**macs, "a": profile("a")}
    assert later(after(one, first), 300, [node("a"), node("b")], **emptied).status.manifest is None


def test_a_fleet_without_room_is_quiet_until_there_is_some() -> None:
    one, small = quantized(), profile("a", free=20 * GIB)
    first = decide(observed(one, a=small))
    again = replace(observed(after(one, first), a=small), now=NOW + timedelta(seconds=20))
    assert decide(again).status == first.status
    assert (
        found := decide(replace(again, profiles={"a": profile("a", free=22 * GIB)})).create
    ) is not None and found.node == "a"


def later(one: ModelCache, seconds: float, nodes: Sequence[Any] | None = None, **there: NodeProfile) -> CacheDecision:
    return decide(replace(observed(one, needed=["b"], nodes=nodes, there=there), now=NOW + timedelta(seconds=seconds)))


@pytest.mark.parametrize("away", [True, False])
def test_files_that_are_lost_are_made_again(away: bool) -> None:
    # The only Mac that has them is away, or its staging folder is empty.
    nodes = [node("a", ready=not away), node("b")]
    macs = {"a": profile("a", copy=CopyPhase.WAITING), "b": profile("b")}
    one = quantized("a", **DONE)
    first = later(one, 0, nodes, **macs)
    assert first.status.quantized_from is not None and first.status.quantized_from.lost_since == NOW
    limit = SOURCE.bytes / quantizing.AGAIN_BYTES_PER_SECOND if away else quantizing.LOST_SECONDS
    soon = later(after(one, first), limit - 1, nodes, **macs)
    assert soon.status.manifest == DIGEST
    again = later(after(one, soon), limit + 1, nodes, **macs)
    assert again.status.manifest is None and again.status.quantized_from == SOURCE
    # Back in time: nothing is made again.
    back = {**macs, "a": profile("a", copy=CopyPhase.COMPLETE, done=4 * GIB)}
    found = later(after(one, soon), 9999, [node("a"), node("b")], **back).status
    assert found.manifest == DIGEST and found.quantized_from is not None and found.quantized_from.lost_since is None


def test_a_copy_elsewhere_is_enough() -> None:
    macs = {"a": profile("a"), "b": profile("b", copy=CopyPhase.COMPLETE, done=4 * GIB)}
    found = later(quantized("a", **DONE), 0, [node("a", ready=False), node("b")], **macs)
    assert found.status.quantized_from is not None and found.status.quantized_from.lost_since is None


@pytest.mark.parametrize("spec", [{}, {"quantize": Quantize(bits=8)}, {"quantize": HOW, "revision": "v2"}])
def test_another_spec_begins_again(spec: Mapping[str, Any]) -> None:
    changed = cache({"resolved_from": FROM, "quantized_from": SOURCE, **DONE}, copies=0, **spec)
    found = decide(observed(changed))
    assert found.create is not None and found.create.task is Task.RESOLVE
    assert found.status.quantized_from is None and found.status.manifest is None


def test_the_pod_is_signed_and_has_the_token_the_store_and_its_own_folder() -> None:
    one = quantized("a").model_copy(update={})
    one = one.model_copy(update={"spec": one.spec.model_copy(update={"token_secret": "hub"})})
    keys = Keyring(b"k" * 32)
    made = manifests.pod(one, NewPod(Task.QUANTIZE, "a", 0, STORE), PodSettings("image"), NO_HUB, keys)
    (container,) = made["spec"]["containers"]
    assert container["command"][:2] == ["thunderfleet-runner", "quantize"]
    volumes = {volume["name"]: volume for volume in made["spec"]["volumes"]}
    assert volumes["token"]["secret"]["secretName"] == "hub"
    assert volumes["owned-staging"]["hostPath"]["path"] == f"{STORE}/.thunderfleet/staging/{UID}"
    read = read_fetch_pod(made, keys)
    assert read is not None and read.task is Task.QUANTIZE and quantizing.mine(one, [read]) == [read]


@pytest.mark.parametrize(("size", "asked"), [(2 * GIB, 3 * GIB), (400 * GIB, 6 * GIB)])
def test_the_pod_requests_memory_for_the_largest_file_that_it_writes(size: int, asked: int) -> None:
    one = quantized(quantized_from=SOURCE.model_copy(update={"quantized_bytes": size}))
    made = manifests.pod(one, NewPod(Task.QUANTIZE, "a", 0, STORE), PodSettings("image"), NO_HUB, Keyring(b"k" * 32))
    assert pod_memory(made) == asked, "placements count what pods request"


def test_a_deployment_gets_only_what_it_asks_for() -> None:
    wants, plain = deployment(quantize={"bits": 4}), deployment()
    assert manifests.model_cache(wants, "tiny")["spec"]["quantize"] == {"bits": 4, "groupSize": 64}
    assert request(wants.spec).repository == "o/n_4bit_g64" and request(plain.spec).repository == "o/n"
    caches = {"ns/tiny": quantized("a", **DONE)}
    assert of_deployment(caches, wants) is not None and of_deployment(caches, plain) is None
    assert of_deployment(caches, deployment(quantize={"bits": 8})) is None
    mac = Mac("a", "10.0.0.1", 9 * GIB, allocatable_bytes=9 * GIB, store=STORE, store_bytes=100 * GIB)
    fleet, weights = WeightsFleets().of("k", Fleet([mac]), {"a": profile("a")}, caches["ns/tiny"])
    (model,) = fleet.macs["a"].models
    assert (model.repository, model.path) == ("o/n_4bit_g64", f"{STORE}/models--o--n_4bit_g64/snapshots/{MADE}")
    assert weights.missing == {"a": model.path}


@pytest.mark.parametrize("name", ["n", "o/n", "o/" + "n" * 96, "o/" + "n" * 95 + "-", "o/n.", "n-"])
@pytest.mark.parametrize("how", [Quantize(bits=2, group_size=128), HOW])
def test_the_name_of_the_result_is_that_of_a_repository(name: str, how: Quantize) -> None:
    made = kept_name(name, how)
    check_repository(made)
    assert made != name and kept_name(name, None) == name
    assert kept_name(name + "x" if len(name) < 90 else "o/" + "n" * 94 + "m", how) != made
