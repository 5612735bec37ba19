"""Reads the ConfigMaps, Secrets and tokens of this node's pods from the API server, with a short cache.

The API server lets a node read only the objects that its own pods name. Pods often share them, so an object is cached for
``FRESH_SECONDS``.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from thunderfleet_lib.kube import Json, Kube

FRESH_SECONDS = 30.0
ROTATE_AT = 0.8
"""A token is replaced after this fraction of its lifetime."""

Kind = Literal["ConfigMap", "Secret"]
_PLURALS: dict[Kind, str] = {"ConfigMap": "configmaps", "Secret": "secrets"}


@dataclass(frozen=True)
class Token:
    """A service account token, used for ``seconds``. ``at``: when it was issued, by the clock and monotonic."""

    text: str
    seconds: float
    at: tuple[float, float]

    def usable(self, now: tuple[float, float]) -> bool:
        """Whether the token can still be used, by both clocks: one may be set, and monotonic time may pause in sleep."""
        return all(0 <= time - at < self.seconds for time, at in zip(now, self.at, strict=True))


class Objects:
    """Cached reads of the API server."""

    def __init__(self, kube: Callable[[], Kube]) -> None:
        self._kube = kube
        self._known: dict[tuple[Kind, str, str], tuple[float, Json | None]] = {}
        self._locks: dict[tuple[Kind, str, str], asyncio.Lock] = {}
        self._tokens: dict[tuple[str, str, str, str, int], Token] = {}

    async def get(self, kind: Kind, namespace: str, name: str, *, max_age: float = FRESH_SECONDS) -> Json | None:
        """The object, at most ``max_age`` seconds old, or None if it does not exist. Raises ApiError."""
        key = (kind, namespace, name)
        async with self._locks.setdefault(key, asyncio.Lock()):
            at, item = self._known.get(key, (float("-inf"), None))
            if time.monotonic() - at <= max_age and item is not None:
                return item
            item = await self._kube().get_or_none(f"/api/v1/namespaces/{namespace}/{_PLURALS[kind]}/{name}")
            self._known[key] = (time.monotonic(), item)
            return item

    async def token(self, pod: Json, audience: str, seconds: int) -> Token:
        """A token of the pod's service account, bound to the pod; cached for ``ROTATE_AT`` of its life. Raises ApiError."""
        metadata = pod["metadata"]
        account = str(pod["spec"].get("serviceAccountName") or "default")
        key = (metadata["namespace"], account, metadata["uid"], audience, seconds)
        known = self._tokens.get(key)
        now = (time.time(), time.monotonic())
        if known is not None and known.usable(now):
            return known
        spec: Json = {
            "expirationSeconds": seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
        }
        if audience:
            spec["audiences"] = [audience]
        answer = await self._kube().create(
            f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        # Uses the lifetime, since the expiry is a time of the API server's clock. The token itself may be valid for longer.
        granted = float((answer.get("spec") or {}).get("expirationSeconds") or seconds)
        fresh = Token(str(answer["status"]["token"]), ROTATE_AT * granted, now)
        self._tokens[key] = fresh
        return fresh

    def forget(self, uid: str) -> None:
        """Drops the tokens of a pod that has ended, and objects that were not read for ten minutes."""
        self._tokens = {key: token for key, token in self._tokens.items() if key[2] != uid}
        old = time.monotonic() - 600
        self._known = {key: known for key, known in self._known.items() if known[0] > old}
        self._locks = {key: lock for key, lock in self._locks.items() if key in self._known or lock.locked()}
