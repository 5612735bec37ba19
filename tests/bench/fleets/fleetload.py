"""What the kubelets and ranks of a simulated fleet do while it runs: Leases, pods that start, leaders that serve.

``python -m tests.bench.fleets.fleetload KUBECONFIG MACS LEASE_SECONDS`` prints a line when it begins and runs until it is
ended. The renewals are spread evenly; every pod of a group that has a Node runs at once; rank 0 of each placement reports that
its group is Ready. No other process of the Macs runs.
"""

import asyncio
import base64
import contextlib
import json
import signal
import ssl
import sys
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web
from thunderfleet_crds.exchange.group import DRAIN_PATH, STATE_PATH, WAIT_LIMIT_SECONDS
from thunderfleet_crds.exchange.mounts import PLAN_KEY
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.names import LABEL_MANAGED_BY, MANAGED_BY
from thunderfleet_lib.kube import ApiError, Kube

from tests.bench.fleets.written import LEASES, mac_name

Json = dict[str, Any]
OURS = {"labelSelector": f"{LABEL_MANAGED_BY}={MANAGED_BY}"}
AT_ONCE = 16


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Leader:
    """Rank 0 of one placement: answers that its group is Ready, or drains on request."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._phase = "Ready"
        self._since = _now()
        self._runner: web.AppRunner | None = None

    async def serve(self, certificate: str, key: str) -> None:
        """Listens where the plan says. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder, "tls.crt"), Path(folder, "tls.key")
            for file, text in zip(files, (certificate, key), strict=True):
                file.write_text(text)
            context.load_cert_chain(*files)
        context.load_verify_locations(cadata=certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        app = web.Application()
        app.add_routes([web.get(STATE_PATH, self._state), web.post(DRAIN_PATH, self._drain)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._runner = runner
        leader = self._plan.ranks[0]
        await web.TCPSite(runner, leader.address, leader.control_port, ssl_context=context).start()

    async def _state(self, request: web.Request) -> web.Response:
        known = request.query.get("phase")
        if known == self._phase:
            await asyncio.sleep(min(float(request.query.get("wait", 0)), WAIT_LIMIT_SECONDS))
        plan = self._plan
        ranks = [{"rank": rank.rank, "node": rank.node, "phase": "Serving"} for rank in plan.ranks]
        return web.json_response(
            {
                "uid": plan.uid,
                "index": plan.index,
                "epoch": plan.epoch,
                "phase": self._phase,
                "ranks": ranks,
                "readySince": self._since,
                "requests": 0,
            }
        )

    async def _drain(self, _: web.Request) -> web.Response:
        self._phase = "Draining"
        return web.Response(status=202)

    async def close(self) -> None:
        """Ends it."""
        if self._runner is not None:
            await self._runner.cleanup()


class Load:
    """The kubelets and ranks of ``macs`` Macs."""

    def __init__(self, kube: Kube, macs: int, lease_seconds: float) -> None:
        self._kube, self._macs, self._lease_seconds = kube, macs, lease_seconds
        self._leaders: dict[str, Leader] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            async with self._limit:
                try:
                    await work()
                except (ApiError, OSError) as error:
                    print(error, file=sys.stderr, flush=True)

        task = asyncio.create_task(limited())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def leases(self) -> None:
        """Renews every Lease once in the given time."""
        loop = asyncio.get_running_loop()
        due, number = loop.time(), 0
        while True:
            name = mac_name(number % self._macs)
            body = {"spec": {"renewTime": _now()}}
            self._begin(lambda name=name, body=body: self._patched(f"{LEASES}/{name}", body))  # type: ignore[misc]
            number += 1
            due += self._lease_seconds / self._macs
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _patched(self, path: str, body: Json) -> None:
        try:
            await self._kube.patch(path, body)
        except ApiError as error:
            if error.status != 404:
                raise

    async def pods(self) -> None:
        """Follows the pods of groups."""
        items, version = await self._kube.list("/api/v1/pods", **OURS)
        for item in items:
            self._pod(item)
        while True:
            try:
                async for kind, item in self._kube.watch("/api/v1/pods", version, labelSelector=OURS["labelSelector"]):
                    version = item["metadata"]["resourceVersion"]
                    if kind in ("ADDED", "MODIFIED"):
                        self._pod(item)
            except ApiError as error:
                print(error, file=sys.stderr, flush=True)
                items, version = await self._kube.list("/api/v1/pods", **OURS)

    def _pod(self, item: Json) -> None:
        meta = item["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        plan_name, _, rank = meta["name"].rpartition("-")
        if meta.get("deletionTimestamp"):
            self._begin(lambda: self._ended(path, f"{meta['namespace']}/{plan_name}", rank))
        elif item["spec"].get("nodeName") and item["status"].get("phase") != "Running":
            self._begin(lambda: self._started(path, meta["namespace"], plan_name, rank, item))

    async def _started(self, path: str, namespace: str, plan_name: str, rank: str, item: Json) -> None:
        if rank == "0" and f"{namespace}/{plan_name}" not in self._leaders:
            await self._lead(namespace, plan_name)
        container = item["spec"]["containers"][0]["name"]
        running = {"name": container, "ready": True, "restartCount": 0, "started": True, "image": "i", "imageID": "i"}
        body = {
            "phase": "Running",
            "startTime": _now()[:19] + "Z",
            "containerStatuses": [{**running, "state": {"running": {"startedAt": _now()[:19] + "Z"}}}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await self._patched(f"{path}/status", {"status": body})

    async def _lead(self, namespace: str, name: str) -> None:
        folder = f"/api/v1/namespaces/{namespace}"
        config_map = await self._kube.get(f"{folder}/configmaps/{name}")
        plan = Plan.model_validate_json(config_map["data"][PLAN_KEY])
        labels = ",".join(f"{name}={value}" for name, value in config_map["metadata"]["labels"].items())
        secrets, _ = await self._kube.list(f"{folder}/secrets", labelSelector=labels)
        uid = config_map["metadata"]["uid"]
        secret = next(one for one in secrets if any(o["uid"] == uid for o in one["metadata"].get("ownerReferences", ())))
        pair = [base64.b64decode(secret["data"][file]).decode() for file in ("tls.crt", "tls.key")]
        leader = self._leaders[f"{namespace}/{name}"] = Leader(plan)
        await leader.serve(*pair)

    async def _ended(self, path: str, plan_key: str, rank: str) -> None:
        leader = self._leaders.pop(plan_key, None) if rank == "0" else None
        if leader is not None:
            await leader.close()
        await self._kube.delete(path, grace_seconds=0)


async def main(kubeconfig: str, macs: str, lease_seconds: str) -> None:
    """Runs until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with await Kube.connect(Path(kubeconfig)) as kube:
        load = Load(kube, int(macs), float(lease_seconds))
        tasks = [asyncio.create_task(part()) for part in (load.leases, load.pods)]
        print(json.dumps({"macs": int(macs)}), flush=True)
        waiter = asyncio.create_task(ended.wait())
        done, _ = await asyncio.wait({*tasks, waiter}, return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, waiter):
            task.cancel()
        await asyncio.gather(*tasks, waiter, return_exceptions=True)
        for task in done - {waiter}:
            task.result()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
