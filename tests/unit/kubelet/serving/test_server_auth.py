"""Authentication, authorization, and their caches."""

import asyncio
from typing import Any, cast

import pytest
from thunderfleet_kubelet.serving.auth import (
    ACCESS_REVIEWS,
    BAD_SECONDS,
    CACHE_SIZE,
    GOOD_SECONDS,
    REVIEWS_AT_ONCE,
    TOKEN_REVIEWS,
    Caller,
    ExpiringCache,
    Guard,
    Question,
    Refused,
    bearer,
    caller_of_certificate,
    question,
)
from thunderfleet_lib.kube import ApiError, Kube

PEER = {"subject": ((("organizationName", "system:masters"),), (("commonName", "admin"),))}


class Reviewer:
    """The API server's two reviews."""

    def __init__(self) -> None:
        self.tokens: dict[str, dict[str, Any]] = {
            "good": {"username": "system:serviceaccount:default:prometheus", "groups": ["system:serviceaccounts"]}
        }
        self.allowed: set[tuple[str, str, str]] = set()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.away = False
        self.denied = False

    async def request(self, method: str, path: str, *, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        if self.away:
            raise ApiError(0, "Unreachable", "cannot reach the API server")
        self.asked.append((path, body["spec"]))
        if path == TOKEN_REVIEWS:
            user = self.tokens.get(body["spec"]["token"])
            return {"status": {"authenticated": True, "user": user} if user else {"authenticated": False}}
        assert path == ACCESS_REVIEWS
        asked = body["spec"]["resourceAttributes"]
        key = (body["spec"]["user"], asked["verb"], asked["subresource"])
        return {"status": {"allowed": key in self.allowed, "denied": self.denied}}


class World:
    """A guard with reviews and a clock of the test's own."""

    def __init__(self) -> None:
        self.reviewer = Reviewer()
        self.now = 0.0
        self.guard = Guard("studio-1", lambda: cast(Kube, self.reviewer), lambda: self.now)

    async def check(self, path: str = "/pods", peer: Any = None, header: str | None = None, method: str = "GET") -> Caller:
        return await self.guard.check(method, path, peer, header)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("method", "path", "verb", "subresource"),
    [
        ("GET", "/containerLogs/default/p/c", "get", "proxy"),
        ("GET", "/exec/default/p/c", "create", "proxy"),
        ("POST", "/exec/default/p/c", "create", "proxy"),
        ("GET", "/attach/default/p/c", "create", "proxy"),
        ("GET", "/portForward/default/p", "create", "proxy"),
        ("GET", "/stats/summary", "get", "stats"),
        ("GET", "/metrics/cadvisor", "get", "metrics"),
        ("GET", "/metrics", "get", "metrics"),
        ("GET", "/metrics/resource", "get", "metrics"),
        ("GET", "/stats/summary", "get", "stats"),
        ("GET", "/logs/kubelet", "get", "log"),
        ("GET", "/healthz", "get", "proxy"),
        ("GET", "//exec/default/p/c", "create", "proxy"),
        ("DELETE", "/anything", "delete", "proxy"),
    ],
)
def test_the_question(method: str, path: str, verb: str, subresource: str) -> None:
    assert question(method, path) == Question(verb, subresource)


def test_a_certificates_user() -> None:
    assert caller_of_certificate(PEER) == Caller("admin", ("system:masters",))
    assert caller_of_certificate({"subject": ((("organizationName", "x"),),)}) is None
    assert caller_of_certificate({}) is None


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("Basic abc", None),
        ("Bearer ", None),
        ("", None),
        (None, None),
        # A byte that is no UTF-8, as the HTTP server passes it on.
        ("Bearer a\udcffc", None),
        ("Bearer \u00e4", None),
    ],
)
def test_bearer(header: str | None, token: str | None) -> None:
    assert bearer(header) == token


async def test_unauthenticated_requests_are_refused(world: World) -> None:
    with pytest.raises(Refused) as caught:
        await world.check()
    assert caught.value.status == 401
    assert "client certificate" in str(caught.value)
    assert world.reviewer.asked == []


async def test_a_known_certificate_is_still_asked_about(world: World) -> None:
    with pytest.raises(Refused, match="admin cannot get nodes/proxy of node studio-1") as caught:
        await world.check(peer=PEER)
    assert caught.value.status == 403
    ((_, spec),) = world.reviewer.asked
    assert spec["groups"] == ["system:masters"]
    assert spec["resourceAttributes"] == {
        "verb": "get",
        "version": "v1",
        "resource": "nodes",
        "subresource": "proxy",
        "name": "studio-1",
    }


async def test_allowed_means_allowed_for_that_alone(world: World) -> None:
    world.reviewer.allowed.add(("admin", "get", "proxy"))
    assert (await world.check("/containerLogs/d/p/c", PEER)).name == "admin"
    with pytest.raises(Refused, match="create nodes/proxy"):
        await world.check("/exec/d/p/c", PEER)


async def test_denied_outweighs_allowed(world: World) -> None:
    world.reviewer.allowed.add(("admin", "get", "proxy"))
    world.reviewer.denied = True
    with pytest.raises(Refused):
        await world.check(peer=PEER)


async def test_a_token_is_reviewed_and_remembered_shortly(world: World) -> None:
    user = "system:serviceaccount:default:prometheus"
    world.reviewer.allowed.add((user, "get", "metrics"))
    for _ in range(3):
        assert (await world.check("/metrics", header="Bearer good")).name == user
    assert [path for path, _ in world.reviewer.asked] == [TOKEN_REVIEWS, ACCESS_REVIEWS]
    world.now = GOOD_SECONDS + 1
    await world.check("/metrics", header="Bearer good")
    assert len(world.reviewer.asked) == 4


async def test_a_token_that_was_taken_back(world: World) -> None:
    world.reviewer.allowed.add(("system:serviceaccount:default:prometheus", "get", "metrics"))
    await world.check("/metrics", header="Bearer good")
    world.reviewer.tokens.clear()
    world.now = GOOD_SECONDS + 1
    with pytest.raises(Refused, match="invalid bearer token") as caught:
        await world.check("/metrics", header="Bearer good")
    assert caught.value.status == 401


async def test_a_no_is_remembered_for_less_long(world: World) -> None:
    for _ in range(2):
        with pytest.raises(Refused):
            await world.check(peer=PEER)
    assert len(world.reviewer.asked) == 1
    world.reviewer.allowed.add(("admin", "get", "proxy"))
    world.now = BAD_SECONDS + 0.1
    await world.check(peer=PEER)


async def test_no_request_is_allowed_while_the_api_server_is_unreachable(world: World) -> None:
    world.reviewer.away = True
    for given in ({"peer": PEER}, {"header": "Bearer good"}):
        with pytest.raises(Refused, match="cannot authorize the request") as caught:
            await world.check(**given)
        assert caught.value.status == 503
    world.reviewer.away = False
    world.reviewer.allowed.add(("admin", "get", "proxy"))
    await world.check(peer=PEER)


def test_what_strangers_choose_is_bounded() -> None:
    known: ExpiringCache[int, int] = ExpiringCache(lambda: 0.0)
    for number in range(CACHE_SIZE + 10):
        known.put(number, number, 1.0)
    assert known.get(9) is None
    assert known.get(10) == 10


async def test_verdicts_are_of_the_whole_caller() -> None:
    """A token bound to another pod or scope is a different caller, even with the same user and groups."""
    world = World()
    user = world.reviewer.tokens["good"]
    world.reviewer.tokens["narrow"] = {**user, "extra": {"scopes": ["none"]}}
    world.reviewer.allowed.add((user["username"], "get", "proxy"))
    await world.check(header="Bearer good")
    world.reviewer.denied = True
    await world.check(header="Bearer good")
    with pytest.raises(Refused, match="cannot get nodes/proxy"):
        await world.check(header="Bearer narrow")
    assert world.reviewer.asked[-1][1]["extra"] == {"scopes": ["none"]}


async def test_a_flood_of_made_up_tokens_reaches_the_api_server_in_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    world, under_way, most = World(), 0, 0
    request = world.reviewer.request

    async def slow(method: str, path: str, *, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return await request(method, path, body=body, seconds=seconds)

    monkeypatch.setattr(world.reviewer, "request", slow)
    refusals = await asyncio.gather(
        *(world.check(header=f"Bearer made-up-{number}") for number in range(100)), return_exceptions=True
    )
    assert {refusal.status for refusal in refusals if isinstance(refusal, Refused)} == {401}
    assert most <= REVIEWS_AT_ONCE
    # One review for the same token from many connections.
    before = len(world.reviewer.asked)
    await asyncio.gather(*(world.check(header="Bearer always-this") for _ in range(20)), return_exceptions=True)
    assert len(world.reviewer.asked) - before <= REVIEWS_AT_ONCE
