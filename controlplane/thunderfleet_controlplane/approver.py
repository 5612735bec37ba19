"""Approves certificates of kubelets that join, and serving certificates until the operator is installed.

``approval`` and ``thunderfleet_lib.csr.rules`` have the rules. The operator decides serving certificates by the same rules. Its
chart grants it the permission. From then on, this approver ignores these requests, whether the operator runs or not.
"""

import asyncio
import datetime
import logging
from collections.abc import Mapping
from typing import Any

from thunderfleet_lib.csr.names import REQUESTS
from thunderfleet_lib.csr.parse import parse
from thunderfleet_lib.csr.rules import (
    Request,
    Surroundings,
    Verdict,
    approval_patch,
    decide_serving,
    is_control_plane,
    plain_address,
    published_addresses,
)
from thunderfleet_lib.kube import ApiError, Kube, Reflector, name_of
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_controlplane.approval import decide_client, is_serving, pending
from thunderfleet_controlplane.components import OPERATOR_ROLE

log = logging.getLogger(__name__)

ROLE = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{OPERATOR_ROLE}"
ENDPOINTS = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
RETRY_SECONDS = 1.0

Json = dict[str, Any]


class Approver:
    """Watches requests and decides them. ``api_server``: addresses of API servers in addition to those that they report."""

    def __init__(self, kube: Kube, api_server: frozenset[str]) -> None:
        self.kube = kube
        self.changed = asyncio.Event()
        self.requests = Reflector(kube, REQUESTS, on_change=self._on_change)
        self._api_server = api_server
        self._reported: frozenset[str] = frozenset()
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
            self.changed.clear()
            undecided = pending(self.requests.items.values())
            waiting = await self._decide_all(undecided)
            names = {name_of(request) for request in undecided}
            self._logged = {name: reason for name, reason in self._logged.items() if name in names}
            try:
                # Polling is necessary: a request may wait for its Node or for the operator, which are not watched.
                async with asyncio.timeout(RETRY_SECONDS if waiting else None):
                    await self.changed.wait()
            except TimeoutError:
                continue

    async def _decide_all(self, undecided: list[Json]) -> bool:
        """Whether some requests must be decided later."""
        waiting = False
        nodes: Mapping[str, Json] | None = None
        try:
            if any(map(is_serving, undecided)) and not await self._operator_decides():
                nodes = {name_of(node): node for node in (await self.kube.list("/api/v1/nodes"))[0]}
                self._reported = reported_addresses(await self.kube.get_or_none(ENDPOINTS))
        except ApiError as error:
            log.warning("cannot decide about serving certificates: %s", error)
        for request in undecided:
            if nodes is None and is_serving(request):
                waiting = True
                continue
            try:
                waiting |= not await self._decide(request, nodes or {})
            except ApiError as error:
                waiting = True
                log.warning("certificate request %s: %s", name_of(request), error)
        return waiting

    async def _operator_decides(self) -> bool:
        """Whether the chart is installed, in a version whose operator approves serving certificates."""
        role = await self.kube.get_or_none(ROLE)
        return any("signers" in rule.get("resources", ()) for rule in (role or {}).get("rules") or [])

    async def _decide(self, item: Json, nodes: Mapping[str, Json]) -> bool:
        verdict, key = await self._verdict(item, nodes), name_of(item)
        if self._logged.get(key) != verdict.reason:
            self._logged[key] = verdict.reason
            log.info("certificate request %s: %s: %s", key, verdict.action, verdict.reason)
        if verdict.action == "Wait":
            return False
        version = item["metadata"]["resourceVersion"]
        await self.kube.patch(f"{REQUESTS}/{key}/approval", approval_patch(verdict, version, _now()))
        return True

    async def _verdict(self, item: Json, nodes: Mapping[str, Json]) -> Verdict:
        try:
            request = parse(item["spec"])
        except ValueError as error:
            return Verdict("Deny", str(error) or "invalid certificate request")
        if is_serving(item):
            created = datetime.datetime.fromisoformat(str(item["metadata"]["creationTimestamp"]))
            return decide_serving(request, self._surroundings(request, nodes), age_seconds(created, _now()))
        return decide_client(request, await self.kube.get_or_none(f"/api/v1/nodes/{request.node}") is not None)

    def _surroundings(self, request: Request, nodes: Mapping[str, Json]) -> Surroundings:
        node = nodes.get(request.node)
        others = {
            address: name for name, other in nodes.items() if name != request.node for address in published_addresses(other)
        }
        api_server = self._api_server | self._reported
        if node is None:
            return Surroundings(None, others, api_server)
        return Surroundings(published_addresses(node), others, frozenset() if is_control_plane(node) else api_server)


def reported_addresses(endpoints: Json | None) -> frozenset[str]:
    """The addresses that the API servers report, those of other machines among them."""
    listed = (endpoints or {}).get("endpoints") or []
    return frozenset(plain_address(str(address)) for one in listed for address in one.get("addresses") or [])


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
