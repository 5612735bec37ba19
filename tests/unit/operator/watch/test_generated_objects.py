"""Objects as tenants and Macs may write them: none of them stops a round, and none is read as something that it is not."""

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from thunderfleet_crds import names
from thunderfleet_operator.observe.concerns import macs_of
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.fetchpods import cache_key, read_fetch_pod
from thunderfleet_operator.observe.objects.fetchpods import statement as fetch_statement
from thunderfleet_operator.observe.objects.metadata import owner_key, owner_uid
from thunderfleet_operator.observe.objects.nodes import read_node
from thunderfleet_operator.observe.objects.plans import read_epoch
from thunderfleet_operator.observe.objects.pods import RankPorts, read_pod
from thunderfleet_operator.observe.objects.proofs import Keyring, Proof
from thunderfleet_operator.observe.objects.requests import read_request
from thunderfleet_operator.observe.objects.routers import router_state
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, LINKS, NODEPROFILES, PODS, Cache
from thunderfleet_operator.watch.lean import pod_only

from tests.support import schemas
from tests.support.generated import FUZZ, examples
from tests.unit.operator.world import GIB, World

KEYS = Keyring(b"k" * 32)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["gateway", "control", "ring"]), inner, max_size=3)
    ),
    max_leaves=6,
)
TEXT = (
    st.text(max_size=40)
    | JSON.map(json.dumps)
    | st.sampled_from(
        ["0", "-1", "9" * 60, "v1.", "v1.a.b", "true", "darwin", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"]
    )
)
LABELS = [name for key, name in vars(names).items() if key.startswith("LABEL_")]
NOTES = [name for key, name in vars(names).items() if key.startswith("ANNOTATION_")]
QUANTITIES = st.sampled_from(["0", "1", "500m", "64Gi", "1n", "9223372036854775807", "100E"])
TIMES = st.sampled_from(["2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
NUMBERS = st.integers(0, 2**31 - 1)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def few(one: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(one, max_size=3)


METADATA = st.fixed_dictionaries(
    {"name": st.just("x"), "namespace": st.just("tenant"), "uid": st.just("u")},
    optional={
        "labels": st.dictionaries(st.sampled_from(LABELS), TEXT, max_size=4),
        "annotations": st.dictionaries(st.sampled_from(NOTES), TEXT, max_size=4),
        "ownerReferences": few(
            some(kind=st.sampled_from(["ModelDeployment", "ModelCache", "Job"]), controller=st.booleans(), name=TEXT, uid=TEXT)
        ),
        "creationTimestamp": TIMES,
        "deletionTimestamp": TIMES,
        "deletionGracePeriodSeconds": st.integers(0, 2**63 - 1),
    },
)
RESOURCES = st.dictionaries(st.sampled_from(["memory", "cpu", names.RESOURCE_GPU_MEMORY]), QUANTITIES)
STATE = some(
    waiting=some(reason=TEXT, message=TEXT),
    running=st.just({}),
    terminated=some(message=TEXT, exitCode=NUMBERS),
)
CONTAINERS = few(
    some(
        name=TEXT,
        command=few(TEXT | st.sampled_from(["resolve", "download"])),
        resources=some(requests=RESOURCES, limits=RESOURCES),
        ports=few(some(containerPort=NUMBERS, hostPort=NUMBERS)),
        restartPolicy=st.just("Always"),
    )
)
MATCH = some(matchFields=few(some(key=st.just("metadata.name") | TEXT, values=few(TEXT))))
PODS_ = st.fixed_dictionaries(
    {"metadata": METADATA},
    optional={
        "spec": some(
            nodeName=TEXT,
            hostNetwork=st.booleans(),
            containers=CONTAINERS,
            initContainers=CONTAINERS,
            overhead=RESOURCES,
            schedulingGates=few(some(name=TEXT)),
            volumes=few(some(hostPath=some(path=TEXT))),
            affinity=some(nodeAffinity=some(requiredDuringSchedulingIgnoredDuringExecution=some(nodeSelectorTerms=few(MATCH)))),
        ),
        "status": some(
            phase=TEXT,
            message=TEXT,
            reason=TEXT,
            containerStatuses=few(some(state=STATE, lastState=STATE, restartCount=NUMBERS)),
            conditions=few(
                some(
                    type=st.sampled_from(["Ready", "PodScheduled", "DisruptionTarget"]),
                    status=TEXT,
                    reason=st.just("Unschedulable") | TEXT,
                    message=TEXT,
                    lastTransitionTime=TIMES,
                )
            ),
        ),
    },
)


def annotated(ports: str) -> dict[str, Any]:
    return {"metadata": {"name": "x", "namespace": "tenant", "annotations": {names.ANNOTATION_PORTS: ports}}}


@given(PODS_)
@example(annotated('{"gateway": Infinity, "control": 1}'))
@example(annotated('{"gateway": 1, "control": 1e999}'))
@example(annotated('{"gateway": 1, "control": 2, "ring": 3}'))
@example(annotated('{"gateway": true, "control": 2}'))
@example(annotated('{"gateway": 1, "control": 65536}'))
@example(annotated(json.dumps({"gateway": 1, "control": 2, "ring": [3] * 2000})))
@example(annotated("[" * 5000))
@example({"metadata": {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 2**63 - 1}})
def test_any_pod_is_read(pod: dict[str, Any]) -> None:
    found = read_pod(pod, KEYS)
    assert found.proof is not Proof.VALID and found.memory_bytes >= 0
    assert found.kept_ports is None or all(0 < port < 65536 for port in found.kept_ports.all)
    assert read_fetch_pod(pod | {"spec": pod.get("spec") or {}}, KEYS) is None
    assert all(isinstance(mac, str) for mac in macs_of(PODS, "tenant/x", pod))
    router_state(pod)


@given(PODS_)
def test_what_is_kept_of_a_large_pod_reads_as_the_whole(pod: dict[str, Any]) -> None:
    lean = pod_only(pod)
    assert read_pod(lean, KEYS) == read_pod(pod, KEYS)
    assert router_state(lean) == router_state(pod) and cache_key(lean) == cache_key(pod)
    assert (owner_uid(lean), owner_key(lean)) == (owner_uid(pod), owner_key(pod))
    assert macs_of(PODS, "tenant/x", lean) == macs_of(PODS, "tenant/x", pod)
    assert fetch_statement(lean) == fetch_statement(pod | {"spec": pod.get("spec") or {}}) or cache_key(pod) is None


@given(st.fixed_dictionaries({"metadata": METADATA, "data": st.dictionaries(st.sampled_from(["plan.json", "other"]), TEXT)}))
def test_any_config_map_is_read(item: dict[str, Any]) -> None:
    found = read_epoch(item, KEYS)
    assert found is None or found.finding.proof is not Proof.VALID
    assert macs_of(CONFIGMAPS, "tenant/x", item) == frozenset()


@given(
    st.fixed_dictionaries(
        {"metadata": METADATA},
        optional={
            "spec": some(unschedulable=st.booleans(), taints=few(some(key=TEXT, value=TEXT, effect=TEXT))),
            "status": some(
                addresses=few(some(type=st.sampled_from(["InternalIP", "Hostname"]), address=TEXT)),
                allocatable=RESOURCES,
                conditions=few(some(type=TEXT, status=TEXT)),
                nodeInfo=some(bootID=TEXT, kubeletVersion=TEXT),
            ),
        },
    )
)
def test_any_node_is_read(item: dict[str, Any]) -> None:
    found = read_node(item)
    assert found.allocatable_bytes >= 0 and isinstance(found.loopback, bool)


@given(st.fixed_dictionaries({"metadata": METADATA, "spec": st.fixed_dictionaries({"username": TEXT, "request": TEXT})}))
def test_any_request_for_a_certificate_is_read(item: dict[str, Any]) -> None:
    found = read_request(item)
    assert found is None or found.name == "x"


def test_an_object_that_cannot_be_read_takes_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def item(name: str, version: int, phase: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "a", "resourceVersion": str(version)}, "status": {"phase": phase}}

    def read(pod: dict[str, Any], keys: Keyring) -> Any:
        if pod["status"]["phase"] == "odd":
            raise RuntimeError("odd")
        return read_pod(pod, keys)

    monkeypatch.setattr("thunderfleet_operator.observe.index.read_pod", read)
    store, index = (cache := Cache())[PODS], Index(cache, lambda: KEYS)
    for name, phase in (("good", "Running"), ("odd", "odd")):
        store.put(item(name, 1, phase))
    assert set(index.pods) == {"a/good"} and "cannot read pods a/odd; ignoring the object" in caplog.text
    store.put(item("other", 1, "Running"))
    assert set(index.pods) == {"a/good", "a/other"} and caplog.text.count("cannot read") == 1, "it is read once"
    store.put(item("good", 2, "odd"))
    assert index.pods["a/good"].phase == "Running" and "cannot read pods a/good; ignoring its change" in caplog.text
    store.put(item("good", 3, "Failed"))
    store.put(item("odd", 2, "Pending"))
    assert {key: pod.phase for key, pod in index.pods.items()} == {"a/good": "Failed", "a/other": "Running", "a/odd": "Pending"}
    store.drop(item("odd", 2, "Pending"))
    assert "a/odd" not in index.pods
    assert all(record.levelno == logging.ERROR for record in caplog.records)


STUDIO = "studio-1.tb1--studio-2.tb1"
ROUNDS = settings(max_examples=examples(10) if FUZZ else 100)
"""Fewer in `make fuzz` than of what is only read: a round takes some 50 ms."""


def fleet() -> World:
    found = World()
    for number, name in enumerate(("studio-1", "studio-2", "mini"), 1):
        found.mac(name, f"10.0.0.{number}", 6 * GIB)
    found.cable("studio-1", "studio-2")
    return found


def field(plural: str, name: str) -> st.SearchStrategy[Any]:
    return schemas.values(schemas.schema(plural)["properties"][name])


@pytest.mark.slow
@ROUNDS
@given(field("modeldeployments", "spec"), st.booleans())
def test_any_spec_has_a_round(spec: dict[str, Any], there: bool) -> None:
    async def rounds(world: World) -> None:
        world.put(DEPLOYMENTS, {"metadata": {"name": "md", "namespace": "ns", "uid": "uid-md", "generation": 1}, "spec": spec})
        await world.round()
        world.run_pods()
        await world.round()

    if there:
        spec = {**spec, "model": {"repository": "org/tiny"}}
    asyncio.run(rounds(fleet()))


@pytest.mark.slow
@ROUNDS
@given(field("nodeprofiles", "status"), field("thunderboltlinks", "status"))
def test_whatever_a_broken_mac_reports_others_are_placed(profile: dict[str, Any], link: dict[str, Any]) -> None:
    async def rounds(world: World) -> None:
        world.change(NODEPROFILES, "studio-1", lambda item: item.update(status=profile))
        world.change(LINKS, STUDIO, lambda item: item.update(status=link))
        world.deploy(nodes={"max": 2})
        world.mac("big", "10.0.0.9", 64 * GIB)
        await world.round()
        assert world.condition("Placed")[0] == "True"
        await world.macs.round("studio-1")
        await world.round()

    asyncio.run(rounds(fleet()))


def test_ports_that_the_operator_wrote_are_kept() -> None:
    assert read_pod(annotated('{"gateway": 1, "control": 2, "ring": [3, 4]}'), KEYS).kept_ports == RankPorts(1, 2, (3, 4))
    assert read_pod(annotated('{"gateway": 1, "control": 2, "ring": null}'), KEYS).kept_ports == RankPorts(1, 2)
