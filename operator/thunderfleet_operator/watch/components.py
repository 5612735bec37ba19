"""Whether scheduler and controller manager renew their Leases, for metrics.

The times in the Leases are not used: a change of a Lease is a renewal, and the time since then is measured by this process.
While the API server does not answer, components cannot renew their Leases, so the measurement starts again afterwards.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from thunderfleet_lib.clock import since_boot
from thunderfleet_lib.kube import ApiError, Kube

COMPONENTS: Final = ("kube-scheduler", "kube-controller-manager")
PATH: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{}"
READ_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A Lease as it has been since ``since``, on the clock that counts sleep."""

    version: str
    since: float


class Components:
    """Reads the Leases while this replica leads. ``show`` gets the seconds without a renewal by component after each reading.

    Left out: components without a Lease, as where they elect no leader, and those whose Lease cannot be read.
    """

    def __init__(
        self,
        kube: Kube,
        leading: Callable[[], bool],
        show: Callable[[Mapping[str, float]], None],
        now: Callable[[], float] = since_boot,
    ) -> None:
        self._kube, self._leading, self._show, self._now = kube, leading, show, now
        self._seen: dict[str, Seen] = {}

    async def run(self) -> None:
        """Reads until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(READ_SECONDS)

    async def read(self) -> None:
        """Reads once."""
        found = await asyncio.gather(*map(self._read, COMPONENTS)) if self._leading() else [None] * len(COMPONENTS)
        now, before = self._now(), self._seen
        self._seen = {}
        for component, version in zip(COMPONENTS, found, strict=True):
            if version is not None:
                last = before.get(component)
                self._seen[component] = last if last is not None and last.version == version else Seen(version, now)
        self._show({component: now - seen.since for component, seen in self._seen.items()})

    async def _read(self, component: str) -> str | None:
        """The version of a component's Lease."""
        try:
            lease = await self._kube.request("GET", PATH.format(component), seconds=REQUEST_SECONDS)
        except ApiError:
            return None
        return str(lease["metadata"]["resourceVersion"])
