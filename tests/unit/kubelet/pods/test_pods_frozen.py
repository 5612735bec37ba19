"""A kubelet that was stopped, and goes on: what its probes and its pods' statuses say then."""

import asyncio
import copy

import pytest
from aiohttp import web

from tests.support.pods import World, sh


class Listener:
    """Answers HTTP probes on loopback. ``asked``: how many came; while ``hold`` is not set they wait."""

    def __init__(self) -> None:
        self.asked, self.port = 0, 0
        self.hold, self.waits = asyncio.Event(), asyncio.Event()
        self.hold.set()

    async def __aenter__(self) -> "Listener":
        app = web.Application()
        app.router.add_get("/", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.hold.set()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        if not self.hold.is_set():
            self.waits.set()
            await self.hold.wait()
        return web.Response()


async def stopped(listener: Listener, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ``seconds`` pass for everything that waits, in the middle of a probe, as SIGSTOP and SIGCONT do."""
    loop, ahead = asyncio.get_running_loop(), 0.0
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + ahead)
    listener.waits.clear()
    listener.hold.clear()
    await asyncio.wait_for(listener.waits.wait(), 30)
    ahead = seconds
    listener.hold.set()


@pytest.mark.parametrize("kind", ["liveness", "readiness"])
async def test_a_probe_during_which_the_kubelet_was_stopped_says_nothing_of_the_container(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Listener() as listener:
        action = {"httpGet": {"host": "127.0.0.1", "path": "/", "port": listener.port}}
        probe = {**action, "periodSeconds": 0.05, "timeoutSeconds": 5, "failureThreshold": 1}
        await world.boot()
        world.api.add_pod("one", {"restartPolicy": "Always", "containers": [sh("exec sleep 600", **{f"{kind}Probe": probe})]})
        await world.until(lambda: world.api.pod("one")["status"]["containerStatuses"][0]["ready"] and listener.asked > 1)
        writes = world.api.status_writes
        await stopped(listener, 100, monkeypatch)
        asked = listener.asked
        await world.until(lambda: listener.asked > asked + 3)
        status = world.api.pod("one")["status"]["containerStatuses"][0]
        assert (status["ready"], status["restartCount"]) == (True, 0)
        assert world.api.status_writes == writes and "Unhealthy" not in world.api.reasons()
        await world.managers[-1].stop(end_pods=True)


async def test_a_probe_that_does_not_answer_fails_after_the_kubelet_was_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Listener() as listener:
        action = {"httpGet": {"host": "127.0.0.1", "path": "/", "port": listener.port}}
        probe = {**action, "periodSeconds": 0.05, "timeoutSeconds": 0.5, "failureThreshold": 1}
        await world.boot()
        world.api.add_pod("one", {"restartPolicy": "Always", "containers": [sh("exec sleep 600", livenessProbe=probe)]})
        await world.until(lambda: listener.asked > 1)
        await stopped(listener, 100, monkeypatch)
        listener.hold.clear()
        await world.until(lambda: world.api.pod("one")["status"]["containerStatuses"][0]["restartCount"] >= 1)
        assert "Unhealthy" in world.api.reasons()
        await world.managers[-1].stop(end_pods=True)


async def test_what_the_controller_of_nodes_says_of_a_silent_kubelets_pods_is_put_right(world: World) -> None:
    await world.boot()
    world.api.add_pod("one", {"containers": [sh("exec sleep 600")]})
    await world.phase("one", "Running")
    await world.until(lambda: conditions(world)["Ready"] == "True")
    pod = copy.deepcopy(world.api.pod("one"))
    for item in pod["status"]["conditions"]:
        if item["type"] == "Ready":
            item["status"] = "False"
    world.api.put("/api/v1/namespaces/default/pods/one", pod)
    await world.until(lambda: conditions(world)["Ready"] == "True")
    await world.managers[-1].stop(end_pods=True)


def conditions(world: World) -> dict[str, str]:
    return {item["type"]: item["status"] for item in world.api.pod("one")["status"]["conditions"]}
