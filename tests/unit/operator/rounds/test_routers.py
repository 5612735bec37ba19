"""What the operator does for routers: documents, endpoints, the Service, reports; rounds that sleep, wake and take turns."""

import base64
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.exchange.routing import (
    DEMAND_BYTES,
    DEMAND_PATH,
    OPERATOR_TLS_NAME,
    Demand,
    DemandAnswer,
    DemandReport,
    Routes,
    credential_digest,
    group_credential,
    key_digest,
    routes_name,
)
from thunderfleet_crds.exchange.routing import routing_keys as read_routing_keys
from thunderfleet_lib.kube import ApiError, key_of
from thunderfleet_lib.net import tls
from thunderfleet_operator.act import executor
from thunderfleet_operator.act.keys import KeyPair, group_keys, router_pair
from thunderfleet_operator.act.routers import publisher as publishing
from thunderfleet_operator.act.routers.api_keys import PER_SECOND, REREAD_SECONDS, ApiKeys
from thunderfleet_operator.act.routers.demand import DemandServer
from thunderfleet_operator.act.routers.publisher import AGAIN_SECONDS, Publisher
from thunderfleet_operator.decide import manifests
from thunderfleet_operator.decide.group.lifecycle import DRAIN_SECONDS
from thunderfleet_operator.decide.routing import documents
from thunderfleet_operator.decide.routing.documents import NAME_PREFIX, digests
from thunderfleet_operator.decide.routing.endpoints import RouterSettings, endpoint_slice
from thunderfleet_operator.decide.scaling.turns import RESIDENCY_SECONDS
from thunderfleet_operator.observe.concerns import concerned, work_key
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.observe.objects.routers import Router
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, ENDPOINT_SLICES, PODS, SECRETS, SERVICES

from tests.unit.operator.values import plan
from tests.unit.operator.world import Json, World

RELEASE = "thunderfleet-system"
ADDRESS = "10.0.0.9:9402"


@pytest.fixture
def world(world: World) -> World:
    """With routers on port 4141."""
    world.routers = RouterSettings(RELEASE, 4141)
    world.restarted()
    return world


def _publisher(world: World) -> Publisher:
    kube: Any = world
    return Publisher(
        kube, world.index, world.writer, lambda: world.keys, lambda: True, RELEASE, ADDRESS, lambda: world.now.timestamp()
    )


def _api_keys(world: World, **values: str) -> None:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    path = SECRETS.item("ns", "keys")
    world.objects[path] = {"kind": "Secret", "metadata": {"name": "keys", "namespace": "ns", "uid": "k"}, "data": data}


def _routes(world: World, name: str = "md") -> Routes:
    item = world.objects[CONFIGMAPS.item(RELEASE, routes_name("ns", name))]
    return Routes.model_validate_json(item["data"]["routes.json"])


def _routing_keys(world: World) -> dict[str, bytes]:
    return read_routing_keys(world.objects[SECRETS.item(RELEASE, "thunderfleet-router")]["data"])


def _router(world: World, node: str, *, ready: bool = True, namespace: str = RELEASE, **labels: str) -> None:
    wears = {"app.kubernetes.io/name": "thunderfleet", "app.kubernetes.io/component": "router", **labels}
    metadata = {"name": f"router-{node}", "namespace": namespace, "labels": wears}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    world.put(PODS, {"metadata": metadata, "spec": {"nodeName": node, "hostNetwork": True}, "status": status})


# --- documents -------------------------------------------------------------------------------------------------------


async def test_digests_follow_the_secret_within_seconds(world: World) -> None:
    world.deploy(server={"apiKeySecret": "keys", "apiKeys": [{"name": "ci", "requestsInFlight": 2, "priority": "Low"}]})
    _api_keys(world, ci="sk-ci\n", people="sk-people", empty=" ")
    publisher = _publisher(world)
    await publisher.round()
    routes, key = _routes(world), next(iter(_routing_keys(world).values()))
    assert {entry.name: entry.digest for entry in routes.keys} == {
        "ci": key_digest(key, "sk-ci"),
        "people": key_digest(key, "sk-people"),
    }
    assert {entry.name: (entry.limits.requests_in_flight, entry.limits.priority) for entry in routes.keys} == {
        "ci": (2, "Low"),
        "people": (None, "Normal"),
    }
    assert "sk-" not in json.dumps([item for path, item in world.objects.items() if RELEASE in path])

    _api_keys(world, people="sk-new")
    world.later(REREAD_SECONDS)
    await publisher.round()
    assert [entry.digest for entry in _routes(world).keys] == [key_digest(key, "sk-new")]

    del world.objects[SECRETS.item("ns", "keys")]
    world.later(REREAD_SECONDS)
    await publisher.round()
    assert _routes(world).keys == ()


async def test_keys_stay_valid_while_their_secret_cannot_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.deploy(server={"apiKeySecret": "keys"})
    _api_keys(world, a="sk-a")
    publisher, known = _publisher(world), world.get_or_none
    await publisher.round()
    error = ApiError(0, "Unreachable", "cannot reach the API server")

    async def read(path: str) -> Json | None:
        if path.endswith("/secrets/keys"):
            raise error
        return await known(path)

    monkeypatch.setattr(world, "get_or_none", read)
    world.later(REREAD_SECONDS)
    await publisher.round()
    assert len(_routes(world).keys) == 1
    error = ApiError(403, "Forbidden", "secrets is forbidden")
    world.later(REREAD_SECONDS)
    await publisher.round()
    assert _routes(world).keys == ()


async def test_a_new_operator_does_not_publish_keys_as_gone_before_it_has_read_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy(server={"apiKeySecret": "keys"})
    _api_keys(world, a="sk-a")
    await _publisher(world).round()

    async def away(path: str) -> Json | None:
        raise ApiError(0, "Timeout", "no response")

    monkeypatch.setattr(world, "get_or_none", away)
    await _publisher(world).round()
    assert len(_routes(world).keys) == 1


@pytest.mark.parametrize("name", ["../../other/secrets/keys", "keys?watch=1", "keys/status", "Keys", "-"])
async def test_a_name_that_no_secret_has_leads_to_no_other_path(world: World, name: str) -> None:
    world.deploy(server={"apiKeySecret": name})
    await _publisher(world).round()
    assert world.reads == []
    assert _routes(world).keys == ()


async def test_routers_get_the_credential_of_a_placement_that_its_gateway_accepts(world: World) -> None:
    world.deploy()
    await world.serve()
    await _publisher(world).round()
    (group,) = _routes(world).groups
    made = Plan.model_validate_json(world.cache[CONFIGMAPS].items["ns/md-0-e1"]["data"]["plan.json"])
    assert made.router is not None and (group.index, group.epoch) == (0, 1)
    credential = group_credential(_routing_keys(world)[group.key_id], "ns", "md", "uid-md", 0, 1)
    assert credential_digest(credential) == made.router.digest


async def test_groups_stay_reachable_after_the_operators_key_has_been_rotated(world: World) -> None:
    world.deploy()
    await world.serve()
    before = world.keys
    world.keys = Keyring(b"n" * 32, *before.keys)
    world.restarted()
    await _publisher(world).round()
    (group,) = _routes(world).groups
    assert len(_routing_keys(world)) == 2 and group.key_id in _routing_keys(world)
    assert _routes(world).key_id != group.key_id


async def test_the_secret_names_the_replica_that_leads_and_comes_back(world: World) -> None:
    publisher = _publisher(world)
    await publisher.round()
    path = SECRETS.item(RELEASE, "thunderfleet-router")
    data = world.objects[path]["data"]
    assert base64.b64decode(data["operator"]).decode() == ADDRESS
    assert b"k" * 32 not in _routing_keys(world).values()
    del world.objects[path]
    world.later(AGAIN_SECONDS)
    await publisher.round()
    assert world.objects[path]["data"] == data


async def test_quiet_rounds_of_the_publisher_write_nothing(world: World) -> None:
    world.deploy()
    await world.serve()
    publisher = _publisher(world)
    await publisher.round()
    count = len(world.writes)
    for _ in range(3):
        world.later(1)
        await publisher.round()
    assert len(world.writes) == count


async def test_the_document_of_a_deleted_deployment_is_deleted(world: World) -> None:
    world.deploy()
    publisher = _publisher(world)
    await publisher.round()
    assert routes_name("ns", "md").startswith(NAME_PREFIX)
    world.put(CONFIGMAPS, {"metadata": {"name": "thunderfleet-dashboard", "namespace": RELEASE}})
    world.remove(DEPLOYMENTS, "ns/md")
    await publisher.round()
    assert CONFIGMAPS.item(RELEASE, routes_name("ns", "md")) not in world.objects
    assert CONFIGMAPS.item(RELEASE, "thunderfleet-dashboard") in world.objects


def _deployments(world: World, namespace: str, count: int, **server: Any) -> None:
    for number in range(count):
        meta = {"name": f"m{number:04}", "namespace": namespace, "uid": f"{namespace}-{number}", "generation": 1}
        meta |= {"creationTimestamp": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"}
        spec = {"model": {"repository": "org/tiny"}, "replicas": 0, "server": server}
        world.put(DEPLOYMENTS, {"metadata": meta, "spec": spec})


async def test_a_document_that_is_refused_keeps_no_other_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    _deployments(world, "a-first", 2)
    world.deploy()
    refused = CONFIGMAPS.item(RELEASE, routes_name("a-first", "m0000"))
    world.refuse = lambda verb, path: ApiError(413, "TooLarge", "too large") if path == refused else None
    publisher = _publisher(world)
    for _ in range(3):
        world.later(1)
        await publisher.round()
    assert _routes(world).deployment == "md" and refused not in world.objects
    assert caplog.text.count("cannot publish ConfigMap") == 1 and "a-first/m0000" in caplog.text


async def test_namespaces_take_turns_in_what_is_published(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "MAX_WRITES", 4)
    _deployments(world, "a-crowd", 20)
    world.deploy()
    publisher = _publisher(world)
    await publisher.round()
    assert _routes(world).deployment == "md"
    assert sum("thunderfleet-routes-" in path for path in world.objects) == 4
    made = publisher._made["ns/md"]
    for _ in range(5):
        world.later(1)
        await publisher.round()
    assert sum("thunderfleet-routes-" in path for path in world.objects) == 21
    assert publisher._made["ns/md"] is made, "made once, as long as nothing changes"


async def test_keys_of_a_namespace_are_bounded_and_its_oldest_models_keep_theirs(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(documents, "MAX_KEYS_OF_NAMESPACE", 5)
    _deployments(world, "ns", 4, apiKeySecret="keys")
    _api_keys(world, a="sk-a", b="sk-b")
    publisher = _publisher(world)
    await publisher.round()
    assert [len(_routes(world, f"m{number:04}").keys) for number in range(4)] == [2, 2, 0, 0]
    assert "routers accept no key for ModelDeployment ns/m0003" in caplog.text
    monkeypatch.setattr(documents, "MAX_SECRETS_OF_NAMESPACE", 0)
    world.later(1)
    await publisher.round()
    assert not _routes(world, "m0000").keys


async def test_namespaces_take_turns_when_secrets_are_read(world: World) -> None:
    await ApiKeys(cast("Any", world), lambda: world.now.timestamp()).refresh(
        [*(f"a-crowd/keys-{number}" for number in range(200)), "ns/keys"], b"k"
    )
    assert len(world.reads) == PER_SECOND and any(path.endswith("/ns/secrets/keys") for path in world.reads)


def test_values_that_are_no_keys_have_no_digest() -> None:
    good = base64.b64encode(b"sk").decode()
    long = base64.b64encode(b"x" * 5000).decode()
    data = {"a": good, "b": "%%%", "c": base64.b64encode(b"\xff").decode(), "d": long, "e": ""}
    assert list(digests(data, b"1" * 32)) == ["a"]
    assert len(digests({str(number): good for number in range(1000)}, b"1" * 32)) == 256

    class Counted(dict[str, str]):
        reads = 0

        def __getitem__(self, name: str) -> str:
            self.reads += 1
            return super().__getitem__(name)

    for value in (good, "%%%"):
        many = Counted({f"{number:06}": value for number in range(100_000)})
        assert len(digests(many, b"1" * 32)) in (0, 256) and many.reads <= documents.MAX_FIELDS


# --- where clients find routers --------------------------------------------------------------------------------------


async def test_endpoints_are_those_of_ready_routers_near_groups_first(world: World) -> None:
    world.deploy()
    _router(world, "mini")
    _router(world, "studio-2")
    _router(world, "studio-1", ready=False)
    _router(world, "studio-1", namespace="ns")
    await world.serve()
    status = world.md.status
    assert [(one.node, one.url) for one in status.endpoints] == [
        ("studio-2", "http://10.0.0.2:4141/v1"),
        ("mini", "http://10.0.0.3:4141/v1"),
    ]
    assert status.endpoint == "http://10.0.0.2:4141/v1"


async def test_the_external_url_is_preferred_and_without_a_router_the_group_is_the_endpoint(world: World) -> None:
    world.deploy()
    await world.serve()
    assert str(world.md.status.endpoint).startswith("http://10.0.0.1:20")
    _router(world, "mini")
    world.routers = RouterSettings(RELEASE, 4141, tls=True, url="https://models.example.com/v1")
    world.restarted()
    await world.round()
    assert world.md.status.endpoint == "https://models.example.com/v1"
    assert world.md.status.endpoints[0].url == "https://10.0.0.3:4141/v1"


async def test_the_service_leads_to_routers_at_port_80(world: World) -> None:
    world.deploy()
    _router(world, "mini")
    await world.serve()
    service = world.objects[SERVICES.item("ns", "md")]
    assert service["spec"] == {
        "type": "ClusterIP",
        "ports": [{"name": "http", "port": 80, "targetPort": 80, "protocol": "TCP"}],
    }
    (made,) = [item for path, item in world.objects.items() if "/endpointslices/" in path]
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "md"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-md"
    assert made["ports"] == [{"name": "http", "port": 4141, "protocol": "TCP"}]
    assert [one["addresses"] for one in made["endpoints"]] == [["10.0.0.3"]]
    _router(world, "studio-1")
    count = len(world.writes)
    await world.round()
    await world.round()
    written = [path for _, path in world.writes[count:]]
    assert [path for path in written if "/endpointslices/" in path] == [ENDPOINT_SLICES.item("ns", made["metadata"]["name"])]


@pytest.mark.parametrize("change", ["deleted", "endpoints", "labels", "ports"])
async def test_an_endpoint_slice_that_somebody_changes_is_restored(
    world: World, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(executor, "RESTORE_SECONDS", 0.0)
    world.deploy()
    _router(world, "mini")
    await world.serve()
    (path,) = [path for path in world.objects if "/endpointslices/" in path]
    before = json.loads(json.dumps(world.objects[path]))
    if change == "deleted":
        world.remove(ENDPOINT_SLICES, f"ns/{before['metadata']['name']}")
    else:
        edited = json.loads(json.dumps(before))
        if change == "endpoints":
            edited["endpoints"].append({"addresses": ["10.6.6.6"]})
        elif change == "labels":
            edited["metadata"]["labels"]["kubernetes.io/service-name"] = "other"
        else:
            edited["ports"][0]["port"] = 1
        world.put(ENDPOINT_SLICES, edited)
    await world.round()
    after = world.objects[path]
    assert (after["endpoints"], after["ports"]) == (before["endpoints"], before["ports"])
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    count = len(world.writes)
    await world.round()
    assert not [path for _, path in world.writes[count:] if "/endpointslices/" in path]


async def test_a_service_whose_ports_somebody_changes_is_restored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "RESTORE_SECONDS", 0.0)
    world.deploy()
    _router(world, "mini")
    await world.serve()
    path = SERVICES.item("ns", "md")
    wanted = world.objects[path]["spec"]["ports"]
    other = {**wanted[0], "name": "other", "port": 81}
    for ports in ([other], [*wanted, other]):
        edited = json.loads(json.dumps(world.objects[path]))
        edited["spec"]["ports"] = ports
        world.put(SERVICES, edited)
        await world.round()
        assert world.objects[path]["spec"]["ports"] == wanted
    count = len(world.writes)
    await world.round()
    assert not [path for _, path in world.writes[count:] if "/services/" in path]


async def test_routers_with_a_certificate_take_over_a_service_of_routers_without(world: World) -> None:
    world.deploy()
    _router(world, "mini")
    await world.serve()
    world.routers = RouterSettings(RELEASE, 4141, tls=True)
    world.restarted()
    await world.round()
    # The API server keeps the ports of the request that created the Service.
    assert [port["port"] for port in world.objects[SERVICES.item("ns", "md")]["spec"]["ports"]] == [443]


async def test_what_another_program_changes_all_the_time_is_not_fought_over(world: World) -> None:
    world.deploy()
    _router(world, "mini")
    await world.serve()
    (path,) = [path for path in world.objects if "/endpointslices/" in path]
    count = len(world.writes)
    for _ in range(5):
        world.put(ENDPOINT_SLICES, {**json.loads(json.dumps(world.objects[path])), "endpoints": []})
        await world.round()
    assert not [path for _, path in world.writes[count:] if "/endpointslices/" in path]


@pytest.mark.parametrize("change", ["deleted", "owner"])
def test_a_change_of_an_endpoint_slice_concerns_its_deployment(world: World, change: str) -> None:
    world.deploy()
    before = endpoint_slice(world.md, manifests.owner(world.md), (), RouterSettings(RELEASE, 4141))
    after = None if change == "deleted" else {**before, "metadata": {**before["metadata"], "ownerReferences": []}}
    found = concerned(world.index, ENDPOINT_SLICES, f"ns/{before['metadata']['name']}", before, after, ())
    assert list(found) == [work_key(DEPLOYMENTS, "ns/md")]


@pytest.mark.parametrize("routers", [0, 1])
async def test_an_endpoint_slice_as_lists_have_it_is_not_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch, routers: int
) -> None:
    """Items of a list have no kind, and the API server says null for no endpoints."""
    monkeypatch.setattr(executor, "RESTORE_SECONDS", 0.0)
    world.deploy()
    for node in ["mini"][:routers]:
        _router(world, node)
    await world.serve()
    (path,) = [path for path in world.objects if "/endpointslices/" in path]
    assert (world.objects[path]["endpoints"] is None) is (routers == 0)
    listed = {name: value for name, value in world.objects[path].items() if name not in ("apiVersion", "kind")}
    world.remove(ENDPOINT_SLICES, key_of(listed))
    world.put(ENDPOINT_SLICES, listed)
    world.restarted()
    count = len(world.writes)
    await world.round()
    assert not [path for _, path in world.writes[count:] if "/endpointslices/" in path]


async def test_a_headless_service_of_an_earlier_version_gets_an_address_and_loses_it_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply that does not name the address of a Service keeps it, "None" as well: it was set by the request to create it."""
    monkeypatch.setattr(executor, "RESTORE_SECONDS", 0.0)
    world.routers = None
    world.restarted()
    world.deploy()
    await world.serve()
    path = SERVICES.item("ns", "md")
    headless = json.loads(json.dumps(world.objects[path]["spec"]))
    assert headless["clusterIP"] == "None" and headless["selector"]
    world.routers = RouterSettings(RELEASE, 4141)
    world.restarted()
    await world.round()
    spec = world.objects[path]["spec"]
    assert spec["type"] == "ClusterIP" and not {"clusterIP", "selector"} & spec.keys()
    count = len(world.writes)
    await world.round()
    assert path not in [path for _, path in world.writes[count:]]
    world.change(SERVICES, "ns/md", lambda item: item["spec"].update(clusterIP="10.0.0.1"))
    world.routers = None
    world.restarted()
    await world.round()
    assert world.objects[path]["spec"].items() >= headless.items()


async def test_a_headless_service_that_an_earlier_operator_left_so_gets_an_address(world: World) -> None:
    world.deploy()
    _router(world, "mini")
    await world.serve()
    path = SERVICES.item("ns", "md")
    world.change(SERVICES, "ns/md", lambda item: item["spec"].update(clusterIP="None"))
    world.restarted()
    await world.round()
    assert "clusterIP" not in world.objects[path]["spec"]


async def test_a_service_to_which_somebody_gives_a_selector_loses_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "RESTORE_SECONDS", 0.0)
    world.deploy()
    _router(world, "mini")
    await world.serve()
    path = SERVICES.item("ns", "md")
    world.change(SERVICES, "ns/md", lambda item: item["spec"].update(selector={"app": "mine"}))
    await world.round()
    assert "selector" not in world.objects[path]["spec"]
    count = len(world.writes)
    await world.round()
    assert path not in [path for _, path in world.writes[count:]]


async def test_a_service_of_somebody_else_gets_no_endpoints(world: World) -> None:
    world.put(SERVICES, {"metadata": {"name": "md", "namespace": "ns"}, "spec": {}})
    world.deploy()
    _router(world, "mini")
    await world.serve()
    assert world.condition("Degraded")[:2] == ("True", "NameTaken")
    assert not [path for path in world.objects if "/endpointslices/" in path]


def test_a_slice_has_addresses_of_one_family() -> None:
    world = World()
    world.deploy()
    routers = (Router("a", "fd00::1"), Router("b", "10.0.0.1"), Router("c", "10.0.0.2"))
    made = endpoint_slice(world.md, {}, routers, RouterSettings(RELEASE, 4141))
    assert (made["addressType"], len(made["endpoints"])) == ("IPv4", 2)
    made = endpoint_slice(world.md, {}, routers[:1], RouterSettings(RELEASE, 4141))
    assert made["addressType"] == "IPv6" and made["metadata"]["name"].endswith("-ipv6")


# --- sleep, wake, turns ----------------------------------------------------------------------------------------------

SLEEPS = {"minReplicas": 0, "maxReplicas": 1, "scaleToZeroAfterSeconds": 60}


def _asked(world: World, **more: Any) -> None:
    demand = Demand(namespace="ns", deployment="md", uid="uid-md", **{"waiting": 1, "wake": True, **more})
    world.scaling.reported(DemandReport(router="router-mini", demands=(demand,)))


async def _rounds(world: World, seconds: int, **said: Any) -> None:
    """Rounds every second, in which rank 0 reports ``said``, until the number of groups changes."""
    before = world.md.wanted_groups
    for _ in range(seconds):
        world.say("Ready", world.md.status.groups[0].epoch, **said)
        await world.round()
        if world.md.wanted_groups != before:
            return
        world.later(1)


async def _stopped(world: World) -> None:
    """Groups that should not run any more have drained, and their pods have ended."""
    for _ in range(3):
        await world.round()
        world.later(DRAIN_SECONDS)
        world.end_pods()


async def test_a_group_sleeps_and_a_request_wakes_it(world: World) -> None:
    _router(world, "mini")
    world.deploy(autoscaling=SLEEPS)
    await world.serve()
    await _rounds(world, 5, inFlight=0, idleSeconds=61)
    assert world.md.wanted_groups == 1, "a new operator does not know yet whether there was a request"
    world.later(61)
    await _rounds(world, 5, inFlight=0, idleSeconds=61)
    assert world.md.wanted_groups == 0
    await _stopped(world)
    assert not world.pods()
    why = "no group runs: no request for 60 s; a request to a router starts one"
    assert world.condition("Ready") == ("False", "Asleep", why)
    assert (world.md.status.ready, world.md.status.endpoint) == ("0/0", "http://10.0.0.3:4141/v1")
    assert ("Scaled", "from 1 to 0 groups: no request for 60 s") in [(e["reason"], e["message"]) for e in world.events]

    _asked(world)
    await world.round()
    assert world.md.wanted_groups == 1
    await world.round()
    assert sorted(world.pods()) == ["md-0-e2-0", "md-0-e2-1"]


async def test_the_status_says_draining_before_the_last_group_stops(world: World) -> None:
    _router(world, "mini")
    world.deploy(autoscaling=SLEEPS)
    await world.serve()
    world.later(61)
    world.say("Ready", 1, inFlight=0, idleSeconds=61)
    await world.round()
    assert [group.state.value for group in world.md.status.groups] == ["Draining"]
    assert world.md.status.autoscaling is not None and world.md.status.autoscaling.draining_to == 0
    assert not world.drained
    world.say("Ready", 1, inFlight=1, idleSeconds=0)
    world.later(5)
    await world.round()
    assert [group.state.value for group in world.md.status.groups] == ["Ready"]


async def test_without_routers_nothing_sleeps(world: World) -> None:
    world.routers = None
    world.restarted()
    world.deploy(autoscaling=SLEEPS)
    await world.serve()
    await _rounds(world, 10, inFlight=0, idleSeconds=600)
    assert world.md.wanted_groups == 1 and world.condition("Ready")[0] == "True"


async def test_suspension_stops_groups_and_a_request_does_not_start_them(world: World) -> None:
    world.deploy()
    await world.serve()
    world.edit(suspend=True)
    await _stopped(world)
    _asked(world)
    await world.round()
    assert not world.pods()
    assert world.condition("Ready") == ("False", "Suspended", "spec.suspend is true")
    world.edit(suspend=False)
    await world.round()
    assert len(world.pods()) == 2


async def test_changes_that_concern_no_rank_restart_no_group(world: World) -> None:
    world.deploy()
    await world.serve()
    pods = {name: pod["metadata"]["uid"] for name, pod in world.pods().items()}
    for change in (
        {"server": {"aliases": ["gpt-4o"], "apiKeys": []}},
        {"autoscaling": {"minReplicas": 1, "maxReplicas": 1}},
        {"autoscaling": None},
    ):
        world.edit(**change)
        world.say("Ready", 1)
        await world.round()
    assert {name: pod["metadata"]["uid"] for name, pod in world.pods().items()} == pods


async def test_the_least_recently_used_model_makes_room_for_one_that_is_asked_for(world: World) -> None:
    world.deploy(autoscaling=SLEEPS)
    await world.serve()
    other = {"metadata": {"name": "other", "namespace": "ns", "uid": "uid-other", "generation": 1}}
    spec = {"model": {"repository": "org/tiny"}, "autoscaling": SLEEPS}
    world.put(DEPLOYMENTS, {**other, "spec": spec, "status": {"autoscaling": {"replicas": 1}}})
    wake = Demand(namespace="ns", deployment="other", uid="uid-other", waiting=1, wake=True)
    world.later(RESIDENCY_SECONDS + 1)
    for busy in (True, False):
        world.reports[0] = (1, world.reports[0][1])
        said = {"inFlight": 1, "idleSeconds": 0} if busy else {"inFlight": 0, "idleSeconds": 30}
        world.say("Ready", 1, readySince="2026-01-01T00:00:00Z", **said)
        world.scaling.reported(DemandReport(router="r", demands=(wake,)))
        await world.reconciler.deployment("ns/other")
        assert world.yielding == ([] if busy else ["ns/md"])
    await _rounds(world, 5, inFlight=0, idleSeconds=30)
    assert world.md.wanted_groups == 0
    assert world.md.status.autoscaling is not None
    assert world.md.status.autoscaling.message == "stopped to make room for ns/other"
    await _stopped(world)
    await world.reconciler.deployment("ns/other")
    assert {name.rsplit("-e", 1)[0] for name in world.pods()} == {"other-0"}


@pytest.mark.parametrize("case", ["another namespace", "must run", "no autoscaling"])
async def test_only_models_of_the_namespace_that_a_request_can_wake_make_room(world: World, case: str) -> None:
    autoscaling = {"must run": SLEEPS | {"minReplicas": 1}, "no autoscaling": None}.get(case, SLEEPS)
    await _wake_another(world, {"autoscaling": autoscaling}, "elsewhere" if case == "another namespace" else "ns", {})
    assert world.yielding == []


async def _wake_another(world: World, first: dict[str, Any], namespace: str, second: dict[str, Any]) -> None:
    """A ModelDeployment serves and has no requests, and a request wakes another one, for which there is no room."""
    world.deploy(**first)
    await world.serve()
    other = {"metadata": {"name": "other", "namespace": namespace, "uid": "uid-other", "generation": 1}}
    spec = {"model": {"repository": "org/tiny"}, "autoscaling": SLEEPS, **second}
    world.put(DEPLOYMENTS, {**other, "spec": spec, "status": {"autoscaling": {"replicas": 1}}})
    wake = Demand(namespace=namespace, deployment="other", uid="uid-other", waiting=1, wake=True)
    world.later(RESIDENCY_SECONDS + 1)
    world.reports[0] = (1, world.reports[0][1])
    world.say("Ready", 1, readySince="2026-01-01T00:00:00Z", inFlight=0, idleSeconds=30)
    world.scaling.reported(DemandReport(router="r", demands=(wake,)))
    await world.reconciler.deployment(f"{namespace}/other")


async def test_models_of_several_namespaces_with_one_priority_take_turns(world: World) -> None:
    shared = {"autoscaling": SLEEPS, "priorityClassName": "shared"}
    await _wake_another(world, shared, "elsewhere", shared)
    assert world.yielding == ["ns/md"]
    await _rounds(world, 5, inFlight=0, idleSeconds=30)
    assert world.md.wanted_groups == 0
    said = "stopped to make room for a model of another namespace with the same priorityClassName (shared)"
    assert world.md.status.autoscaling is not None and world.md.status.autoscaling.message == said
    assert not any("elsewhere" in str(event.get("message")) for event in world.events)
    await _stopped(world)
    await world.reconciler.deployment("elsewhere/other")
    assert [path for path in world.objects if "/elsewhere/" in path and "/pods/other-0-" in path]


async def test_the_room_that_is_made_is_kept_for_the_model_that_was_asked_for(world: World) -> None:
    shared = {"autoscaling": SLEEPS, "priorityClassName": "shared"}
    third = {"metadata": {"name": "third", "namespace": "third", "uid": "uid-third", "generation": 1}}
    world.put(DEPLOYMENTS, {**third, "spec": {"model": {"repository": "org/tiny"}}})
    await _wake_another(world, shared, "elsewhere", shared)
    await _rounds(world, 5, inFlight=0, idleSeconds=30)
    await world.round()
    world.later(DRAIN_SECONDS)
    await world.round()
    world.end_pods()
    await world.round()
    assert not world.pods()

    def placed(name: str) -> bool:
        return any(f"/pods/{name}-0-" in path for path in world.objects)

    await world.reconciler.deployment("third/third")
    assert not placed("third")
    await world.reconciler.deployment("elsewhere/other")
    assert placed("other")
    # Once that one has its place, what is left is free for all.
    assert world.scaling.signals("third/third", world.md).reserved == ()


async def test_room_is_not_kept_for_a_model_that_is_deleted(world: World) -> None:
    shared = {"autoscaling": SLEEPS, "priorityClassName": "shared"}
    await _wake_another(world, shared, "elsewhere", shared)
    assert world.scaling.signals("third/third", world.md).reserved
    world.scaling.forget("elsewhere/other")
    assert world.scaling.signals("third/third", world.md).reserved == ()
    assert world.scaling.signals("ns/md", world.md).yields_to is None


@pytest.mark.parametrize(("first", "second"), [("shared", None), (None, "shared"), ("shared", "other"), (None, None)])
async def test_models_of_several_namespaces_without_one_priority_take_no_turns(
    world: World, first: str | None, second: str | None
) -> None:
    spec = {"autoscaling": SLEEPS, "priorityClassName": first}
    await _wake_another(world, spec, "elsewhere", {"priorityClassName": second})
    assert world.yielding == []


# --- reports over TLS ------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> KeyPair:
    return router_pair(b"k" * 32)


class Server:
    """A demand server, with what it was sent."""

    def __init__(self, world: World) -> None:
        self.now = 0.0
        self.leads = True
        self.reports: list[DemandReport] = []
        self.server = DemandServer(self.reports.append, lambda: world.index.deployments, lambda: self.leads, lambda: self.now)
        self.port = 0

    @asynccontextmanager
    async def serving(self, pair: KeyPair) -> AsyncIterator[None]:
        runner: web.AppRunner = await self.server.serve("127.0.0.1", 0, pair)
        self.port = self.server.port
        try:
            yield
        finally:
            await runner.cleanup()

    async def send(self, context: ssl.SSLContext, body: bytes) -> tuple[int, bytes]:
        url = f"https://127.0.0.1:{self.port}{DEMAND_PATH}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=body, ssl=context, server_hostname=OPERATOR_TLS_NAME) as answer,
        ):
            return answer.status, await answer.read()


def _body(router: str = "r", **more: Any) -> bytes:
    demand = Demand(namespace="ns", deployment="md", uid="uid-md", waiting=1, wake=True, **more)
    return DemandReport(router=router, demands=(demand,)).model_dump_json(by_alias=True).encode()


@pytest.fixture
def strangers() -> Iterator[list[KeyPair]]:
    yield [router_pair(b"x" * 32), group_keys(b"k" * 32, plan())]


async def test_only_routers_can_report(world: World, pair: KeyPair, strangers: list[KeyPair]) -> None:
    world.deploy()
    server = Server(world)
    async with server.serving(pair):
        for stranger in strangers:
            context = tls.pinned(stranger.certificate, stranger.key, server=False)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with pytest.raises((aiohttp.ClientError, OSError)):
                await server.send(context, _body())
        naked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        naked.check_hostname, naked.verify_mode = False, ssl.CERT_NONE
        with pytest.raises((aiohttp.ClientError, OSError)):
            await server.send(naked, _body())
        assert server.reports == []
        status, _ = await server.send(tls.pinned(pair.certificate, pair.key, server=False), _body())
    assert status == 200 and len(server.reports) == 1


async def test_reports_are_bounded_in_size_and_rate_and_refused_by_a_standby(world: World, pair: KeyPair) -> None:
    server, context = Server(world), tls.pinned(pair.certificate, pair.key, server=False)
    async with server.serving(pair):
        assert (await server.send(context, b"{}"))[0] == 400
        assert (await server.send(context, b" " * (DEMAND_BYTES + 1)))[0] == 413
        assert [(await server.send(context, _body("a")))[0] for _ in range(2)] == [200, 429]
        assert (await server.send(context, _body("b")))[0] == 200
        server.now = 1.0
        assert (await server.send(context, _body("a")))[0] == 200
        server.leads = False
        server.now = 2.0
        assert (await server.send(context, _body("a")))[0] == 503
    assert len(server.reports) == 3


async def test_a_router_learns_why_a_deployment_is_not_woken(world: World, pair: KeyPair) -> None:
    server, context = Server(world), tls.pinned(pair.certificate, pair.key, server=False)
    texts = []
    async with server.serving(pair):
        for spec in ({"replicas": 0}, {"suspend": True}, {"autoscaling": SLEEPS}, None):
            if spec is not None:
                world.deploy(**spec)
            else:
                world.remove(DEPLOYMENTS, "ns/md")
            server.now += 1.0
            _, body = await server.send(context, _body())
            texts.append([refusal.message for refusal in DemandAnswer.model_validate_json(body).refusals])
    assert texts == [
        ["ModelDeployment ns/md has no replicas: its owner can set spec.replicas to 1 or more"],
        ["ModelDeployment ns/md is suspended: its owner can set spec.suspend to false"],
        [],
        ["ModelDeployment ns/md no longer exists"],
    ]
