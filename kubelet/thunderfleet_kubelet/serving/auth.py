"""Authentication and authorization of requests to the kubelet.

A caller is authenticated by a client certificate of the cluster's CA (as the API server is) or by a bearer token (TokenReview),
and authorized by the API server (SubjectAccessReview). This module has no rules of its own; it translates requests to reviews.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from thunderfleet_lib.kube import ApiError, Kube

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
GOOD_SECONDS = 30.0
BAD_SECONDS = 5.0
REVIEW_SECONDS = 10.0
CACHE_SIZE = 512
# Limits the reviews that callers with invalid tokens can cause.
REVIEWS_AT_ONCE = 8
# These are authorized as `create`, whatever the HTTP method of the WebSocket handshake.
CREATING = ("exec", "attach", "portForward", "run")
VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Refused(Exception):
    """The request is refused with HTTP ``status`` (401, 403 or 503)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Caller:
    """An authenticated user."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Question:
    """What to authorize: ``verb`` on ``nodes/<subresource>`` of this node."""

    verb: str
    subresource: str


def question(method: str, path: str) -> Question:
    """What to authorize for a request."""
    first = path.strip("/").split("/", 1)[0]
    subresource = {"metrics": "metrics", "stats": "stats", "logs": "log"}.get(first, "proxy")
    verb = "create" if first in CREATING else VERBS.get(method, method.lower())
    return Question(verb, subresource)


def caller_of_certificate(peer: Mapping[str, Any]) -> Caller | None:
    """The user of a verified client certificate (from ``getpeercert``): common name, organizations as groups."""
    parts = [pair for relative in peer.get("subject") or () for pair in relative]
    names = [value for key, value in parts if key == "commonName"]
    if not names:
        return None
    return Caller(names[0], tuple(value for key, value in parts if key == "organizationName"))


def bearer(header: str | None) -> str | None:
    """The bearer token in an Authorization header."""
    kind, _, token = (header or "").partition(" ")
    # The bytes of other characters may not even be text.
    return token.strip() or None if kind.lower() == "bearer" and token.isascii() else None


Key = TypeVar("Key")
Value = TypeVar("Value")


class ExpiringCache(Generic[Key, Value]):
    """A bounded cache with expiry; unauthenticated callers choose the keys."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The cached value, unless it has expired."""
        entry = self._known.get(key)
        return entry[1] if entry and entry[0] > self._clock() else None

    def put(self, key: Key, value: Value, seconds: float) -> None:
        """Caches a value for ``seconds``."""
        self._known[key] = (self._clock() + seconds, value)
        self._known.move_to_end(key)
        while len(self._known) > CACHE_SIZE:
            self._known.popitem(last=False)


class Guard:
    """Authenticates and authorizes requests. Refuses them while the API server is unreachable."""

    def __init__(self, node_name: str, kube: Callable[[], Kube], clock: Callable[[], float] = time.monotonic) -> None:
        self.node_name = node_name
        self.kube = kube
        self._callers: ExpiringCache[bytes, Caller | str] = ExpiringCache(clock)
        self._reviews = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._verdicts: ExpiringCache[tuple[Caller, Question], tuple[bool, str]] = ExpiringCache(clock)

    async def check(self, method: str, path: str, peer: Mapping[str, Any] | None, authorization: str | None) -> Caller:
        """Returns the caller if the request is allowed. Raises Refused."""
        caller = await self._who(peer, authorization)
        await self._may(caller, question(method, path))
        return caller

    async def _who(self, peer: Mapping[str, Any] | None, authorization: str | None) -> Caller:
        caller = caller_of_certificate(peer) if peer else None
        if caller is not None:
            return caller
        token = bearer(authorization)
        if token is None:
            raise Refused(
                401, "authentication required: use a client certificate signed by the cluster's CA, or a bearer token"
            )
        key = hashlib.sha256(token.encode()).digest()
        known = self._callers.get(key)
        if known is None:
            async with self._reviews:
                known = self._callers.get(key) or await self._review(token)
            self._callers.put(key, known, GOOD_SECONDS if isinstance(known, Caller) else BAD_SECONDS)
        if isinstance(known, str):
            raise Refused(401, known)
        return known

    async def _review(self, token: str) -> Caller | str:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = (await self._ask(TOKEN_REVIEWS, body)).get("status") or {}
        if not status.get("authenticated"):
            return f"invalid bearer token: {status.get('error') or 'not authenticated'}"
        user = status.get("user") or {}
        return Caller(
            str(user.get("username") or ""),
            tuple(user.get("groups") or ()),
            str(user.get("uid") or ""),
            tuple(sorted((str(key), tuple(values)) for key, values in (user.get("extra") or {}).items())),
        )

    async def _may(self, caller: Caller, asked: Question) -> None:
        key = (caller, asked)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._access(caller, asked)
            self._verdicts.put(key, verdict, GOOD_SECONDS if verdict[0] else BAD_SECONDS)
        allowed, reason = verdict
        if not allowed:
            raise Refused(
                403,
                f"{caller.name} cannot {asked.verb} nodes/{asked.subresource} of node {self.node_name}"
                + (f": {reason}" if reason else ""),
            )

    async def _access(self, caller: Caller, asked: Question) -> tuple[bool, str]:
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": caller.name,
                "groups": list(caller.groups),
                "uid": caller.uid,
                "extra": {key: list(values) for key, values in caller.extra},
                "resourceAttributes": {
                    "verb": asked.verb,
                    "version": "v1",
                    "resource": "nodes",
                    "subresource": asked.subresource,
                    "name": self.node_name,
                },
            },
        }
        status = (await self._ask(ACCESS_REVIEWS, body)).get("status") or {}
        return bool(status.get("allowed")) and not status.get("denied"), str(status.get("reason") or "")

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self.kube().request("POST", path, body=body, seconds=REVIEW_SECONDS)
        except ApiError as error:
            raise Refused(503, f"cannot authorize the request: {error}") from None
