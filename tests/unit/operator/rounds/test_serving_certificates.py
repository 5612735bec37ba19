"""Certificate requests of kubelets: which the operator decides, how, and how many at a time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from thunderfleet_lib.csr.parse import REQUEST_BYTES
from thunderfleet_lib.csr.rules import AGAIN, CONTROL_PLANE_LABEL, WAIT_SECONDS
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.act.controllers.certificate import ENDPOINTS, SERVICE
from thunderfleet_operator.act.writer import NotLeading
from thunderfleet_operator.observe.concerns import concerned
from thunderfleet_operator.observe.reader import REQUESTS_AT_ONCE
from thunderfleet_operator.watch.cache import NODES, REQUESTS

from tests.support.csr import csr, signing_request
from tests.unit.operator.world import Json, World

OURS = "v1.36.3-thunderfleet.0.1.0"
OWN, OTHER = "10.1.0.1", "10.1.0.2"
KEY = "certificatesigningrequests/mac-1"


def put_node(world: World, name: str, *addresses: str, version: str = OURS, **labels: str) -> None:
    world.put(
        NODES,
        {
            "metadata": {"name": name, "labels": labels},
            "status": {
                "addresses": [{"type": "InternalIP", "address": address} for address in addresses],
                "nodeInfo": {"kubeletVersion": version},
            },
        },
    )


def send(world: World, title: str, *addresses: str, node: str = "mac-1", **change: Any) -> None:
    user = f"system:node:{node}"
    world.put(REQUESTS, csr(**{"user": user, "name": user, "addresses": addresses, "object_name": title, **change}))


def decided(world: World) -> dict[str, str]:
    """Every request that has been decided, and how."""
    found = {}
    for path, item in world.objects.items():
        if path.startswith(REQUESTS.path) and item.get("status"):
            (condition,) = item["status"]["conditions"]
            assert (condition["reason"], condition["status"]) == ("Thunderfleet", "True")
            found[item["metadata"]["name"]] = f"{condition['type']}: {condition['message']}"
    return found


@pytest.fixture
def macs(world: World) -> World:
    put_node(world, "mac-1", OWN)
    put_node(world, "mac-2", OTHER)
    return world


async def test_an_honest_request_is_approved_once(macs: World) -> None:
    send(macs, "csr-1", OWN)
    assert await macs.certificates.round("mac-1") is None
    assert decided(macs) == {"csr-1": f"Approved: Node mac-1 publishes {OWN}"}
    assert await macs.certificates.round("mac-1") is None
    assert len(macs.writes) == 1, "what is decided is not decided again"
    assert "csr-1" in macs.cache[REQUESTS].items and not macs.index.requests_of


async def test_a_foreign_address_is_denied_after_a_while(macs: World) -> None:
    send(macs, "csr-1", OWN, OTHER)
    again = await macs.certificates.round("mac-1")
    assert again is not None and 0 < again <= 5 and decided(macs) == {}
    macs.now += timedelta(seconds=WAIT_SECONDS - 1)
    again = await macs.certificates.round("mac-1")
    assert again is not None and 0 < again <= 1 and decided(macs) == {}
    macs.now += timedelta(seconds=1)
    assert await macs.certificates.round("mac-1") is None
    assert decided(macs) == {"csr-1": f"Denied: Node mac-1 does not publish {OTHER} (waited 60 s); {AGAIN}"}


async def test_an_address_that_the_node_publishes_a_little_later_is_approved(macs: World) -> None:
    send(macs, "csr-1", "10.1.0.9")
    await macs.certificates.round("mac-1")
    assert decided(macs) == {}
    before = macs.cache[NODES].items["mac-1"]
    put_node(macs, "mac-1", "10.1.0.9")
    after = macs.cache[NODES].items["mac-1"]
    assert KEY in set(concerned(macs.index, NODES, "mac-1", before, after, []))
    await macs.certificates.round("mac-1")
    assert decided(macs) == {"csr-1": "Approved: Node mac-1 publishes 10.1.0.9"}


async def test_a_mac_that_publishes_the_address_of_another_gets_no_certificate_for_it(macs: World) -> None:
    put_node(macs, "mac-1", OWN, OTHER)
    send(macs, "csr-1", OWN, OTHER)
    macs.now += timedelta(seconds=WAIT_SECONDS)
    await macs.certificates.round("mac-1")
    assert decided(macs)["csr-1"].startswith(f"Denied: Node mac-2 publishes {OTHER} too")


@pytest.mark.parametrize("address", ["192.168.64.1", "10.96.0.1", "10.1.0.250", "::ffff:10.96.0.1"])
async def test_no_mac_gets_a_certificate_for_the_api_server(macs: World, address: str) -> None:
    """Its authority signs both, so with that certificate a Mac could answer in place of the API server."""
    macs.objects[SERVICE] = {"spec": {"clusterIPs": ["10.96.0.1", "fd00::1"]}}
    macs.objects[ENDPOINTS] = {"endpoints": [{"addresses": ["10.1.0.250"]}]}
    put_node(macs, "mac-1", OWN, address)
    send(macs, "csr-1", OWN, address)
    await macs.certificates.round("mac-1")
    assert "is an address of the API server" in decided(macs)["csr-1"] and decided(macs)["csr-1"].startswith("Denied")
    put_node(macs, "mac-1", OWN, address, **{CONTROL_PLANE_LABEL: ""})
    send(macs, "csr-2", OWN, address)
    await macs.certificates.round("mac-1")
    assert decided(macs)["csr-2"].startswith("Approved"), "the API server runs there"


async def test_without_the_addresses_of_the_api_server_nothing_is_decided(macs: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(path: str) -> Json | None:
        raise ApiError(403, "Forbidden", f"cannot get {path}")

    send(macs, "csr-1", OWN)
    with monkeypatch.context() as patched:
        patched.setattr(macs, "get_or_none", refuse)
        with pytest.raises(ApiError, match="kubernetes"):
            await macs.certificates.round("mac-1")
    assert decided(macs) == {}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"usages": ("digital signature", "server auth", "client auth")}, "usages"),
        ({"names": ("mac-1",)}, "DNS names are not approved"),
        ({"name": "system:node:mac-2"}, "common name must be that of the requestor"),
        ({"groups": ("system:authenticated",)}, "not in the group"),
        ({"request": "bm9uc2Vuc2U="}, "PEM"),
        ({"request": "A" * (10 * REQUEST_BYTES)}, "larger than"),
    ],
)
async def test_what_no_kubelet_sends_is_denied_at_once(macs: World, change: Json, text: str) -> None:
    send(macs, "csr-1", OWN, **change)
    await macs.certificates.round("mac-1")
    assert decided(macs)["csr-1"].startswith("Denied") and text in decided(macs)["csr-1"]


async def test_nothing_else_is_touched(macs: World) -> None:
    """Requests of other kubelets, of kubelets without a Node, of users, and those that are decided."""
    put_node(macs, "linux-1", "10.1.0.3", version="v1.36.3")
    send(macs, "linux", "10.1.0.3", node="linux-1")
    send(macs, "missing", "10.1.0.4", node="mac-9")
    send(macs, "user", OWN, user="alice")
    send(macs, "token", OWN, user="system:bootstrap:abcdef")
    send(macs, "by-hand", OWN)
    macs.change(REQUESTS, "by-hand", lambda item: item.update(status={"conditions": [{"type": "Denied"}]}))
    macs.now += timedelta(days=1)
    for node in ("linux-1", "mac-9", "mac-1", "alice", ""):
        assert await macs.certificates.round(node) is None
    assert macs.writes == [] and macs.reads == []


async def test_a_request_of_a_kubelet_without_a_node_is_decided_when_it_is_there(macs: World) -> None:
    send(macs, "csr-1", "10.1.0.9", node="mac-9")
    assert await macs.certificates.round("mac-9") is None
    put_node(macs, "mac-9", "10.1.0.9")
    node = macs.cache[NODES].items["mac-9"]
    assert "certificatesigningrequests/mac-9" in set(concerned(macs.index, NODES, "mac-9", None, node, []))
    await macs.certificates.round("mac-9")
    assert decided(macs)["csr-1"].startswith("Approved")


async def test_thousands_of_requests_take_many_short_rounds(macs: World) -> None:
    """One round decides a few, and the queue gives other keys their turn in between. The newest come first."""
    text = signing_request("system:node:mac-1", addresses=(OWN,))
    for number in range(1000):
        created = (macs.now - timedelta(seconds=1000 - number)).isoformat()
        send(macs, f"csr-{number:04}", request=text, created=created)
    assert await macs.certificates.round("mac-1") == 0
    assert sorted(decided(macs)) == [f"csr-{number:04}" for number in range(1000 - REQUESTS_AT_ONCE, 1000)]
    rounds = 1
    while await macs.certificates.round("mac-1") is not None:
        rounds += 1
    assert len(decided(macs)) == 1000 and rounds == 1000 // REQUESTS_AT_ONCE - 1


async def test_requests_that_wait_do_not_run_in_a_loop(macs: World) -> None:
    for number in range(3 * REQUESTS_AT_ONCE):
        send(macs, f"csr-{number:02}", OTHER)
    again = await macs.certificates.round("mac-1")
    assert again is not None and again > 1 and decided(macs) == {}


async def test_large_requests_take_little_memory(macs: World) -> None:
    """Of one that is decided, only the name stays."""
    send(macs, "large", request="A" * 1_000_000)
    kept: Any = macs.cache[REQUESTS].items.kept
    assert len(str(macs.cache[REQUESTS].items["large"])) < 2 * REQUEST_BYTES
    send(macs, "csr-1", OWN)
    await macs.certificates.round("mac-1")
    assert set(macs.cache[REQUESTS].items["csr-1"]) == {"metadata"} and len(kept["csr-1"].text) < 300


async def test_a_request_that_somebody_else_has_decided_or_deleted_is_left(macs: World) -> None:
    send(macs, "csr-1", OWN)
    send(macs, "csr-2", OWN)
    macs.version += 1
    macs.objects[REQUESTS.item(None, "csr-1")]["metadata"]["resourceVersion"] = str(macs.version)
    del macs.objects[REQUESTS.item(None, "csr-2")]
    assert await macs.certificates.round("mac-1") is None
    assert decided(macs) == {}
    assert "csr-2" not in macs.cache[REQUESTS].items


async def test_a_replica_that_lost_the_lease_decides_nothing(macs: World) -> None:
    send(macs, "csr-1", OWN)
    macs.is_leading = False
    with pytest.raises(NotLeading):
        await macs.certificates.round("mac-1")
    assert decided(macs) == {}


async def test_a_request_concerns_the_node_that_sent_it(macs: World) -> None:
    def keys(user: str) -> list[str]:
        return list(concerned(macs.index, REQUESTS, "csr-1", None, csr(user=user, request=""), []))

    assert keys("system:node:mac-1") == [KEY]
    assert keys("alice") == keys("system:bootstrap:abcdef") == []
    assert list(concerned(macs.index, REQUESTS, "csr-1", csr(request=""), None, [])) == []


def test_the_world_starts_when_requests_are_created(world: World) -> None:
    assert world.now == datetime(2026, 1, 1, tzinfo=UTC)
