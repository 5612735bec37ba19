"""What is read of Leases and agents, and that a right that is missing only leaves something out."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from thunderfleet_lib.kube import ApiError, Kube, ServerClock
from thunderfleet_view.components import slow_part
from thunderfleet_view.facts import Signs
from thunderfleet_view.live.leases import read_signs

Json = dict[str, Any]

COORDINATION = "/apis/coordination.k8s.io/v1/namespaces"
DAEMONSETS, PODS = "/apis/apps/v1/daemonsets", "/api/v1/pods"
OPERATOR: Json = {"metadata": {"name": "operator-1", "namespace": "system"}}
AGENT: Json = {"metadata": {"name": "agent-1"}}


class Api:
    """Answers from ``objects`` and ``lists`` by path; everything else is forbidden. ``read``: the paths that were asked."""

    def __init__(self, objects: dict[str, Json], lists: dict[str, list[Json]]) -> None:
        self.objects, self.lists, self.read = objects, lists, list[str]()
        self.clock = ServerClock()
        self.clock.now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    async def request(self, method: str, path: str, *, seconds: float) -> Json:
        self.read.append(path)
        assert method == "GET" and seconds
        if path not in self.objects:
            raise ApiError(403, "Forbidden", "no")
        return self.objects[path]

    async def list(self, path: str, **query: object) -> tuple[list[Json], str]:
        self.read.append(path)
        if path not in self.lists:
            raise ApiError(403, "Forbidden", "no")
        return self.lists[path], "1"

    async def signs(self, *operators: Json, release: str | None = None) -> Signs:
        return await read_signs(cast(Kube, self), operators, release)


def lease(name: str) -> Json:
    return {"metadata": {"name": name}}


async def test_leases_are_read_by_who_renews_them() -> None:
    paths = {
        f"{COORDINATION}/kube-system/leases/kube-scheduler": lease("kube-scheduler"),
        f"{COORDINATION}/system/leases/thunderfleet-operator": lease("thunderfleet-operator"),
    }
    api = Api(paths, {f"{COORDINATION}/kube-node-lease/leases": [lease("studio-1"), lease("studio-2")]})
    found = await api.signs(OPERATOR)
    assert set(found.leases) == {"kube-scheduler", "operator"} and set(found.kubelets) == {"studio-1", "studio-2"}
    assert found.now == api.clock.now and not found.slow and not found.agents


async def test_without_rights_nothing_is_known() -> None:
    api = Api({}, {})
    assert await api.signs(OPERATOR) == Signs(now=api.clock.now)
    assert PODS not in api.read


@pytest.mark.parametrize(("unavailable", "read"), [(0, False), (None, False), (2, True)])
async def test_the_agents_of_a_large_fleet_are_read_only_if_some_are_not_ready(unavailable: int | None, read: bool) -> None:
    sets: list[Json] = [{"status": {"numberUnavailable": unavailable}}, {"metadata": {}}]
    api = Api({}, {DAEMONSETS: sets, PODS: [AGENT]})
    assert list((await api.signs()).agents) == ([AGENT] if read else [])
    assert (PODS in api.read) == read


async def test_who_may_read_one_namespace_only_reads_nothing_of_others() -> None:
    sets: list[Json] = [{"status": {"numberUnavailable": 1}}]
    own = {"/apis/apps/v1/namespaces/system/daemonsets": sets, "/api/v1/namespaces/system/pods": [AGENT]}
    api = Api({}, own)
    assert list((await api.signs(release="system")).agents) == [AGENT]
    assert not {DAEMONSETS, PODS} & set(api.read)


async def test_a_slow_control_plane_is_noticed_by_the_quickest_of_small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thunderfleet_view.live.leases.SLOW_SECONDS", -1.0)
    api = Api({f"{COORDINATION}/kube-system/leases/kube-scheduler": lease("kube-scheduler")}, {})
    (part,) = (await api.signs()).slow
    assert part == "etcd" and "/livez/ping" in api.read, "what etcd has no part in was quick"
    assert (slow_part(0.2), slow_part(1.5)) == ("etcd", "API server")
    assert not (await Api({}, {}).signs()).slow, "requests that are refused say nothing"
