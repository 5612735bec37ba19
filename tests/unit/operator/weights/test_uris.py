"""Models at URIs: whom Macs may ask, and that a namespace uses a model only after a pod of its own has read the list of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.kinds.modelcache import ModelCache, ModelCacheStatus
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import Model, ModelStore, NodeProfile, NodeProfileStatus
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.uris import kept_name
from thunderfleet_crds.vocabulary import ConditionType
from thunderfleet_operator.decide.manifests import PodSettings, served_name
from thunderfleet_operator.decide.weights import manifests
from thunderfleet_operator.decide.weights.cache import CacheDecision, decide
from thunderfleet_operator.decide.weights.manifests import HubSettings, NewPod, UriSettings
from thunderfleet_operator.observe.objects.fetchpods import FetchPod, Task
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.observe.observed import ObservedCache
from thunderfleet_operator.watch.cache import CACHES, NODEPROFILES

from tests.unit.operator.world import World, tiny_model

Json = dict[str, Any]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GIB = 2**30
HOST = "models.example.com"
URI, SHA256, DIGEST = f"https://{HOST}/team/tiny/", "a" * 64, "d" * 64
UID = "11111111-2222-3333-4444-555555555555"
STORE = "/Library/Thunderfleet/models"
SOURCE = {"uri": URI, "sha256": SHA256}
MODEL = Model(path="/", repository=kept_name(URI), revision=SHA256, bytes=8 * GIB, complete=True)
RESOLVED = {"resolved_from": f"{URI} {SHA256}", "commit": SHA256, "manifest": DIGEST, "files": 4, "bytes": GIB, "model": MODEL}
ALLOWED = UriSettings((HOST,))


def cache(status: dict[str, Any] | None = None, **spec: object) -> ModelCache:
    metadata = {"name": "tiny", "namespace": "ns", "uid": UID, "generation": 3}
    found = ModelCache.load({"metadata": metadata, "spec": {**SOURCE, **spec}})
    return found.model_copy(update={"status": ModelCacheStatus(**(status or {}))})


def observed(one: ModelCache, uris: UriSettings = ALLOWED, *pods: FetchPod) -> ObservedCache:
    store = ModelStore(folder=STORE, free_bytes=100 * GIB)
    profile = NodeProfile(metadata={"name": "a"}, status=NodeProfileStatus(store=store))
    node = Node("a", ready=True, labels={"kubernetes.io/os": "darwin"})
    return ObservedCache(one, pods, {"a": node}, {"a": profile}, {}, NOW, not_allowed=uris.refusal(one.spec.uri))


def pod(task: Task, *arguments: str, message: str = "", phase: str = "Succeeded") -> FetchPod:
    words = ("--uri", URI, "--sha256", SHA256, *arguments)
    return FetchPod("p", "ns", "u", "ns/tiny", UID, task, words, "a", phase, False, message, "", NOW)


def resolved(decision: CacheDecision) -> tuple[str, str]:
    found = find_condition(decision.status.conditions, ConditionType.RESOLVED)
    assert found is not None
    return found.reason, found.message


@pytest.mark.parametrize(
    "hosts", [(), ("other.example.com",), (f"{HOST}:8443",), (f"www.{HOST}",), ("example.com",)], ids=lambda hosts: str(hosts)
)
def test_no_pod_asks_a_host_that_is_not_allowed(hosts: tuple[str, ...]) -> None:
    refused = decide(observed(cache(), UriSettings(hosts)))
    assert refused.create is None
    reason, message = resolved(refused)
    assert reason == Reason.HOST_NOT_ALLOWED
    assert f"add it to the chart's value uris.hosts (allowed now: {', '.join(hosts) or 'none'})" in message
    stalled = find_condition(refused.status.conditions, ConditionType.STALLED)
    assert stalled is not None and stalled.status == "True"
    # Nothing is written again while nothing changes, and it goes on at once when the value was changed.
    again = decide(observed(cache(refused.status.__dict__), UriSettings(hosts)))
    assert again.status == refused.status
    assert decide(observed(cache(refused.status.__dict__))).create == NewPod(Task.RESOLVE, "a", 0)


def test_a_host_that_is_no_longer_allowed_is_not_asked_for_files() -> None:
    start = cache(RESOLVED, copies=1)
    assert decide(observed(start)).create == NewPod(Task.DOWNLOAD, "a", 0, STORE)
    refused = decide(observed(start, UriSettings()))
    assert refused.create is None
    found = find_condition(refused.status.conditions, ConditionType.FETCHED)
    assert found is not None and found.reason == Reason.HOST_NOT_ALLOWED
    again = decide(observed(cache(refused.status.__dict__, copies=1)))
    assert again.create == NewPod(Task.DOWNLOAD, "a", 0, STORE)
    # What was refused is not shown while it is fetched.
    conditions = {one.type: (one.status, one.reason) for one in again.status.conditions}
    assert conditions["Fetched"] == ("False", Reason.FETCHING)
    assert conditions["Stalled"][0] == "False"


def test_the_pods_are_told_what_to_read_and_whom_they_may_ask() -> None:
    settings = UriSettings((HOST, "b.example.com:8443"), ("b.example.com:8443",), "PEM")
    hub = HubSettings("https://hub.example", "http://proxy.example", enabled=True, uris=settings)
    keys = Keyring(b"k" * 32)
    for task, words in ((Task.RESOLVE, []), (Task.DOWNLOAD, ["--commit", SHA256, "--manifest", DIGEST])):
        made = manifests.pod(cache(RESOLVED), NewPod(task, "a", 0, STORE), PodSettings("image"), hub, keys)
        container = made["spec"]["containers"][0]
        assert container["command"] == ["thunderfleet-runner", str(task), "--uri", URI, "--sha256", SHA256, *words]
        assert {entry["name"]: entry["value"] for entry in container["env"]} == {
            "THUNDERFLEET_URI_HOSTS": f"{HOST} b.example.com:8443",
            "THUNDERFLEET_URI_PRIVATE_HOSTS": "b.example.com:8443",
            "THUNDERFLEET_URI_AUTHORITIES": "PEM",
        }


def test_a_result_with_another_hash_than_the_spec_is_refused() -> None:
    for commit, expected in ((SHA256, SHA256), ("b" * 64, None)):
        text = FetchResult(Reason.RESOLVED, commit=commit, manifest=DIGEST, files=4, bytes=8 * GIB, model=MODEL).text
        start = cache({"resolved_from": f"{URI} {SHA256}"})
        found = decide(observed(start, ALLOWED, pod(Task.RESOLVE, message=text)))
        assert found.status.commit == expected


def test_another_hash_or_uri_is_resolved_again() -> None:
    assert decide(observed(cache(RESOLVED))).status.commit == SHA256
    for spec in ({"sha256": "b" * 64}, {"uri": f"https://{HOST}/team/other/"}):
        changed = decide(observed(cache(RESOLVED, **spec)))
        assert changed.status.commit is None
        assert changed.create == NewPod(Task.RESOLVE, "a", 0)


@pytest.mark.parametrize("reason", [Reason.MANIFEST_NOT_FOUND, Reason.MANIFEST_MISMATCH, Reason.HOST_NOT_ALLOWED])
def test_what_a_server_refuses_needs_a_person_and_is_tried_again_later(reason: Reason) -> None:
    start = cache({"resolved_from": f"{URI} {SHA256}"})
    failed = decide(observed(start, ALLOWED, pod(Task.RESOLVE, message=FetchResult(reason, "no").text, phase="Failed")))
    assert resolved(failed)[0] == reason
    stalled = find_condition(failed.status.conditions, ConditionType.STALLED)
    assert stalled is not None and stalled.status == "True"
    later = replace(observed(cache(failed.status.__dict__)), now=NOW + timedelta(seconds=301))
    assert decide(observed(cache(failed.status.__dict__))).create is None
    assert decide(later).create is not None


def test_each_uri_is_kept_under_a_name_of_its_own() -> None:
    names = [
        kept_name(uri) for uri in (URI, f"https://{HOST}/tiny/", "https://other.example.com/team/tiny/", f"https://{HOST}/")
    ]
    assert len(set(names)) == 4
    assert all(name.startswith("uri.") for name in names)
    assert [name.rpartition("/")[2] for name in names] == ["tiny", "tiny", "tiny", "models-example-com"]
    deployment = ModelDeployment.load({"metadata": {"name": "tiny", "namespace": "ns"}, "spec": {"model": SOURCE}})
    assert served_name(deployment) == "team/tiny"


# --- ModelDeployments ----------------------------------------------------------------------------------------------------


def world() -> World:
    """One Mac, which has the model of the URI already: another namespace has had it fetched."""
    found = World()
    here = f"{STORE}/models--{kept_name(URI).replace('/', '--')}/snapshots/{SHA256}"
    found.mac("a", "10.0.0.1", 32 * GIB, model={**tiny_model(path=here), "repository": kept_name(URI), "revision": SHA256})
    copy = {"repository": kept_name(URI), "commit": SHA256, "manifest": DIGEST, "phase": "Complete", "bytes": 8 * GIB}
    store = {"store": {"folder": STORE, "freeBytes": 100 * GIB}, "copies": [{**copy, "bytesDone": 8 * GIB}]}
    found.change(NODEPROFILES, "a", lambda item: item["status"].update(store))
    return found


def known(namespace: str) -> Json:
    facts = {**tiny_model(8 * GIB), "path": "/", "repository": kept_name(URI), "revision": SHA256}
    status = {
        "resolvedFrom": f"{URI} {SHA256}",
        "commit": SHA256,
        "manifest": DIGEST,
        "files": 4,
        "bytes": 8 * GIB,
        "model": facts,
    }
    metadata = {"name": "tiny", "namespace": namespace, "uid": UID, "generation": 1}
    return {"metadata": metadata, "spec": {**SOURCE, "copies": 0}, "status": status}


async def test_a_deployment_gets_a_model_cache_with_the_uri_although_a_mac_has_the_files() -> None:
    here = world()
    here.deploy(model=SOURCE)
    await here.round()
    made = here.cache[CACHES].items["ns/md"]
    assert made["spec"] == {**SOURCE, "copies": 0}
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-md"
    assert here.condition("Placed")[0] == "False"
    assert not here.pods()


@pytest.mark.parametrize(
    "model",
    [
        SOURCE,
        {"repository": kept_name(URI)},
        {"path": f"{STORE}/models--{kept_name(URI).replace('/', '--')}/snapshots/{SHA256}"},
    ],
)
async def test_the_files_of_another_namespace_are_not_used(model: Json) -> None:
    here = world()
    here.put(CACHES, known("other"))
    here.deploy(model=model)
    await here.round()
    assert here.condition("ModelResolved")[0] == "False"
    assert not here.pods()


async def test_a_namespace_whose_own_pod_has_read_the_list_uses_the_files() -> None:
    here = world()
    here.put(CACHES, known("ns"))
    here.deploy(model=SOURCE)
    await here.round()
    assert here.condition("ModelResolved")[:2] == ("True", "Resolved")
    assert here.condition("Placed")[0] == "True"
    await here.round()
    assert here.pods()
    # Another version at the same URI is another model.
    here.edit(model={**SOURCE, "sha256": "b" * 64})
    await here.round()
    assert here.condition("ModelResolved")[0] == "False"
