"""Reads the Secrets with API keys that ModelDeployments name, periodically, and keeps only digests of their values.

They are read one by one by name, so the operator needs no permission to list Secrets or to watch them.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_operator.decide.routing.documents import digests, in_turn

log = logging.getLogger(__name__)

REREAD_SECONDS = 2.0
"""How old a digest may be. With many Secrets it is older: PER_SECOND bounds the requests. Namespaces take turns."""
PER_SECOND = 20
NOTHING: Mapping[str, str] = {}


@dataclass(slots=True)
class _Read:
    at: float
    found: Mapping[str, str]


class ApiKeys:
    """By ``namespace/name`` of their Secrets. ``clock``: monotonic seconds."""

    def __init__(self, kube: Kube, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._clock = clock
        self._read: dict[str, _Read] = {}
        self._with = b""
        self._said: dict[str, str] = {}

    def digests(self, secret: str) -> Mapping[str, str] | None:
        """Digests by the name of the field; None before the Secret has been read."""
        known = self._read.get(secret)
        return known.found if known is not None else None

    async def refresh(self, secrets: Collection[str], routing_key: bytes) -> None:
        """Reads outdated Secrets again, at most PER_SECOND, and drops Secrets that are not in ``secrets``."""
        if routing_key != self._with:
            self._read.clear()
            self._with = routing_key
        self._read = {name: read for name, read in self._read.items() if name in secrets}
        self._said = {name: said for name, said in self._said.items() if name in secrets}
        now = self._clock()
        old = [name for name in secrets if name not in self._read or now - self._read[name].at >= REREAD_SECONDS]
        old.sort(key=lambda name: self._read[name].at if name in self._read else 0.0)
        for name in in_turn(old)[:PER_SECOND]:
            await self._reread(name)

    async def _reread(self, name: str) -> None:
        namespace, _, secret = name.partition("/")
        try:
            found = await self._kube.get_or_none(f"/api/v1/namespaces/{namespace}/secrets/{secret}")
        except ApiError as error:
            if error.status != 403:
                # The known keys stay valid while the API server does not answer.
                log.warning("cannot read Secret %s: %s", name, error)
                return
            found = None
            self._say(name, f"cannot read Secret {name}: {error}")
        else:
            self._say(name, "" if found is not None else f"Secret {name} with API keys does not exist: routers accept no key")
        data = (found or {}).get("data") or {}
        self._read[name] = _Read(self._clock(), digests(data, self._with))

    def _say(self, name: str, text: str) -> None:
        """Logs each problem once."""
        if text and self._said.get(name) != text:
            log.warning("%s", text)
        self._said[name] = text
