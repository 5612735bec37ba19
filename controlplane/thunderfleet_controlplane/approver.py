"""Approves certificates of kubelets: those that join, and serving certificates. ``approval`` has the rules."""

import asyncio
import datetime
import logging
from typing import Any

from thunderfleet_lib.kube import ApiError, Kube, Reflector, name_of

from thunderfleet_controlplane.approval import Verdict, decide, parse, pending

log = logging.getLogger(__name__)

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
RETRY_SECONDS = 1.0


class Approver:
    """Watches requests and decides them."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.changed = asyncio.Event()
        self.requests = Reflector(kube, REQUESTS, on_change=self._on_change)
        self._logged: dict[str, str] = {}

    def _on_change(self, _: str) -> None:
        self.changed.set()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.requests.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            waiting = False
            self.changed.clear()
            for request in (undecided := pending(self.requests.items.values())):
                try:
                    waiting |= not await self._decide(request)
                except ApiError as error:
                    waiting = True
                    log.warning("certificate request %s: %s", name_of(request), error)
            names = {name_of(request) for request in undecided}
            self._logged = {name: reason for name, reason in self._logged.items() if name in names}
            try:
                # A waiting request waits for its Node, which is not watched.
                async with asyncio.timeout(RETRY_SECONDS if waiting else None):
                    await self.changed.wait()
            except TimeoutError:
                continue

    async def _decide(self, item: dict[str, Any]) -> bool:
        verdict, key = await self._verdict(item), name_of(item)
        if self._logged.get(key) != verdict.reason:
            self._logged[key] = verdict.reason
            log.info("certificate request %s: %s: %s", key, verdict.action, verdict.reason)
        if verdict.action == "Wait":
            return False
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "Approved" if verdict.action == "Approve" else "Denied",
            "status": "True",
            "reason": "Thunderfleet",
            "message": verdict.reason,
            "lastUpdateTime": now,
        }
        await self.kube.patch(
            f"{REQUESTS}/{key}/approval",
            {"metadata": {"resourceVersion": item["metadata"]["resourceVersion"]}, "status": {"conditions": [condition]}},
        )
        return True

    async def _verdict(self, item: dict[str, Any]) -> Verdict:
        try:
            request = parse(item)
        except ValueError as error:
            return Verdict("Deny", str(error) or "invalid certificate request")
        return decide(request, await self.kube.get_or_none(f"/api/v1/nodes/{request.node}"))
