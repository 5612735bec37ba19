"""Decides who may see the fleet: sends TokenReviews and SubjectAccessReviews to the API server.

Answers are kept for a short time. A flood of tokens must neither reach the API server nor lock out users who were accepted
before. So tokens that were never accepted are reviewed slowly: few at once, and few per minute from one address.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from thunderfleet_crds import names
from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_router.decide.shown import AUDIENCE, token_problem

log = logging.getLogger(__name__)

ACCEPTED_SECONDS: Final = 60.0
"""How long an accepted token is not reviewed again, and so a revoked right still counts."""
REFUSED_SECONDS: Final = 10.0
MAX_ACCEPTED: Final = 256
MAX_REFUSED: Final = 1024
AT_ONCE: Final = 4
"""Maximum concurrent reviews of new tokens, and of tokens that were accepted before."""
PER_MINUTE: Final = 12
"""Maximum reviews of new tokens from one address per minute."""
MAX_ADDRESSES: Final = 1024
REVIEW_SECONDS: Final = 5.0
RESOURCES: Final = (
    ("", "nodes"),
    (names.GROUP, names.NODEPROFILE_PLURAL),
    (names.GROUP, names.THUNDERBOLTLINK_PLURAL),
    (names.GROUP, names.MODELDEPLOYMENT_PLURAL),
)


@dataclass(frozen=True, slots=True)
class Review:
    """The answer to a token: 200, or the status and message of a refusal."""

    status: int = 200
    message: str = ""

    @property
    def allowed(self) -> bool:
        return self.status == 200


class Viewers:
    """``now``: seconds since 1970, for tokens; ``clock``: seconds of a clock that is never set."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._kube = kube
        self._clock = clock
        self._now = now
        self._accepted: OrderedDict[bytes, float] = OrderedDict()
        """Expiry of accepted tokens, by digest. Expired entries show that a token was accepted before."""
        self._refused: OrderedDict[bytes, tuple[Review, float]] = OrderedDict()
        self._asked: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Number of reviews of new tokens by address, and the start of the address's minute."""
        self._running: dict[bytes, asyncio.Task[Review]] = {}
        self._new = self._old = 0

    async def check(self, token: str, address: str) -> Review:
        """Whether the holder of a token may see the fleet. ``address``: of the client."""
        problem = token_problem(token, self._now())
        if problem:
            return Review(401, problem)
        digest, now = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest(), self._clock()
        if self._accepted.get(digest, 0.0) > now:
            self._accepted.move_to_end(digest)
            return Review()
        known, until = self._refused.get(digest, (None, 0.0))
        if known is not None and until > now:
            return known
        running = self._running.get(digest)
        if running is None:
            busy = self._busy(digest, address, now)
            if busy:
                return Review(429, busy)
            old = digest in self._accepted
            # Counted before it runs, because other requests may come until then.
            self._count(1, old=old)
            running = self._running[digest] = asyncio.create_task(self._review(digest, token))
            running.add_done_callback(lambda _: self._ended(digest, old=old))
        # A client that disconnects does not cancel the review, because others may wait for it.
        return await asyncio.shield(running)

    def _busy(self, digest: bytes, address: str, now: float) -> str:
        """Why a review must wait; "" if it may start."""
        if digest in self._accepted:
            return "" if self._old < AT_ONCE else "too many tokens are being reviewed; retry later"
        if self._new >= AT_ONCE:
            return "too many tokens are being reviewed; retry later"
        count, began = self._asked.pop(address, (0, now))
        if now - began >= 60.0:
            count, began = 0, now
        self._asked[address] = count + 1, began
        if len(self._asked) > MAX_ADDRESSES:
            self._asked.popitem(last=False)
        return "" if count < PER_MINUTE else "too many unknown tokens from this address; retry in a minute"

    def _count(self, change: int, *, old: bool) -> None:
        if old:
            self._old += change
        else:
            self._new += change

    def _ended(self, digest: bytes, *, old: bool) -> None:
        self._running.pop(digest, None)
        self._count(-1, old=old)

    async def _review(self, digest: bytes, token: str) -> Review:
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                review = await self._asks(token)
        except (ApiError, TimeoutError) as error:
            log.warning("a viewer's token cannot be reviewed: %s", error or "no answer in time")
            return Review(503, "the API server does not review tokens now; retry later")
        self._keep(digest, review)
        return review

    def _keep(self, digest: bytes, review: Review) -> None:
        now = self._clock()
        if review.allowed:
            self._refused.pop(digest, None)
            self._accepted[digest] = now + ACCEPTED_SECONDS
            self._accepted.move_to_end(digest)
            if len(self._accepted) > MAX_ACCEPTED:
                self._accepted.popitem(last=False)
            return
        self._accepted.pop(digest, None)
        self._refused[digest] = review, now + REFUSED_SECONDS
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)

    async def _asks(self, token: str) -> Review:
        """Sends the request to the API server. Raises ApiError."""
        spec: dict[str, Any] = {"token": token, "audiences": [AUDIENCE]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = (await self._kube.create("/apis/authentication.k8s.io/v1/tokenreviews", body)).get("status") or {}
        # A server without support for audiences leaves them out: then the token may be for any audience.
        if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or ()):
            remedy = f"create one with `kubectl create token NAME --audience={AUDIENCE}`"
            return Review(401, f"the API server does not accept this token: {remedy}")
        user = status.get("user") or {}
        allowed = await asyncio.gather(*(self._may(user, group, resource) for group, resource in RESOURCES))
        missing = [f"{name}.{group}".rstrip(".") for (group, name), may in zip(RESOURCES, allowed, strict=True) if not may]
        if missing:
            who = str(user.get("username"))[:200]
            text = f"{who} is not allowed to list {', '.join(missing)}: bind the ClusterRole thunderfleet-page-viewer"
            return Review(403, text)
        return Review()

    async def _may(self, user: Mapping[str, Any], group: str, resource: str) -> bool:
        spec = {
            "user": user.get("username"),
            "uid": user.get("uid"),
            "groups": user.get("groups"),
            "extra": user.get("extra"),
            "resourceAttributes": {"verb": "list", "group": group, "resource": resource},
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        given = {key: value for key, value in spec.items() if value}
        found = await self._kube.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {**body, "spec": given})
        return (found.get("status") or {}).get("allowed") is True
