"""For how long scheduler and controller manager have not renewed their Leases."""

from collections.abc import Mapping
from typing import Any

import pytest
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.watch.components import COMPONENTS, Components

SCHEDULER, MANAGER = COMPONENTS


class World:
    """Leases of an API server in memory, a clock, and what was shown last."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {SCHEDULER: 1, MANAGER: 1}
        self.away: set[str] = set()
        self.leads = True
        self.now = 1000.0
        self.shown: Mapping[str, float] = {}
        kube: Any = self
        self.components = Components(kube, lambda: self.leads, self._show, lambda: self.now)

    def _show(self, found: Mapping[str, float]) -> None:
        self.shown = found

    async def request(self, method: str, path: str, *, seconds: float) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        assert (method, path) == ("GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}")
        if name in self.away:
            raise ApiError(0, "Timeout", "no answer")
        if name not in self.versions:
            raise ApiError(404, "NotFound", "no lease")
        return {"metadata": {"resourceVersion": str(self.versions[name])}}

    async def after(self, seconds: float, *renewed: str) -> Mapping[str, float]:
        self.now += seconds
        for name in renewed:
            self.versions[name] += 1
        await self.components.read()
        return self.shown


async def test_the_time_counts_from_the_last_renewal() -> None:
    world = World()
    assert await world.after(0) == {SCHEDULER: 0.0, MANAGER: 0.0}
    assert await world.after(5, SCHEDULER, MANAGER) == {SCHEDULER: 0.0, MANAGER: 0.0}
    assert await world.after(40, MANAGER) == {SCHEDULER: 40.0, MANAGER: 0.0}
    assert await world.after(5, SCHEDULER, MANAGER) == {SCHEDULER: 0.0, MANAGER: 0.0}


async def test_a_component_without_a_lease_is_left_out() -> None:
    world = World()
    del world.versions[SCHEDULER]
    assert await world.after(40) == {MANAGER: 0.0}


async def test_only_the_leader_shows_them() -> None:
    world = World()
    await world.after(0)
    world.leads = False
    assert await world.after(40) == {}
    world.leads = True
    assert await world.after(40) == {SCHEDULER: 0.0, MANAGER: 0.0}


@pytest.mark.parametrize("away", [{SCHEDULER}, {SCHEDULER, MANAGER}])
async def test_time_without_an_answer_does_not_count(away: set[str]) -> None:
    """Without an API server nobody can renew a Lease."""
    world = World()
    await world.after(0)
    world.away = away
    assert SCHEDULER not in await world.after(90, MANAGER)
    world.away = set()
    assert (await world.after(5))[SCHEDULER] == 0.0
    assert (await world.after(30, MANAGER))[SCHEDULER] == 30.0
