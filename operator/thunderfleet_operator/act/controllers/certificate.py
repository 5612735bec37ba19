"""One round for the certificate requests of a Node's kubelet: approves or denies serving certificates.

Where the chart is installed, the operator is the only approver. It decides requests that kubelets of Thunderfleet send, and no
others.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from urllib.parse import urlsplit

from thunderfleet_lib import logs
from thunderfleet_lib.csr.rules import approval_patch, plain_address
from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.decide import serving_certificates
from thunderfleet_operator.decide.serving_certificates import Ruling
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.reader import observe_requests
from thunderfleet_operator.watch.cache import REQUESTS

log = logging.getLogger(__name__)

SERVICE = "/api/v1/namespaces/default/services/kubernetes"
ENDPOINTS = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"


class CertificateController:
    """``clock`` is UTC now."""

    def __init__(self, kube: Kube, index: Index, writer: Writer, clock: Callable[[], datetime]) -> None:
        self._kube = kube
        self._index = index
        self._writer = writer
        self._clock = clock

    async def round(self, node: str) -> float | None:
        """Seconds until the next round although nothing may have changed."""
        if node not in self._index.requests_of or node not in self._index.nodes or not self._index.nodes[node].ours:
            return None
        api_server = await self._api_server()
        observed = observe_requests(self._index, node, self._clock(), api_server)
        if observed is None:
            return None
        decision = serving_certificates.decide(observed)
        for ruling in decision.rulings:
            await self._write(ruling)
        return decision.recheck_seconds

    async def _write(self, ruling: Ruling) -> None:
        sent, verdict = ruling.request, ruling.verdict
        patch = approval_patch(verdict, sent.version, self._clock())
        try:
            await self._writer.patch_approval(sent.name, patch)
        except ApiError as error:
            if error.status == 404:
                self._writer.forget(REQUESTS, sent.name, sent.uid)
                return
            if error.status != 409:
                raise
            # Another approver has decided it; the event about that is on its way.
            log.info("certificate request %s has changed meanwhile", sent.name)
            return
        done = "approved" if verdict.action == "Approve" else "denied"
        log.log(
            logging.INFO if verdict.action == "Approve" else logging.WARNING,
            "certificate request %s of Node %s %s: %s",
            sent.name,
            sent.node,
            done,
            verdict.reason,
            extra=logs.about(node=sent.node),
        )

    async def _api_server(self) -> frozenset[str]:
        """The addresses of the API server: of its Service, its endpoints, and the one that this client uses."""
        service = await self._kube.get_or_none(SERVICE) or {}
        slices = await self._kube.get_or_none(ENDPOINTS) or {}
        found = [urlsplit(self._kube.host).hostname or "", *((service.get("spec") or {}).get("clusterIPs") or [])]
        for endpoint in slices.get("endpoints") or []:
            found += endpoint.get("addresses") or []
        return frozenset(map(plain_address, found))
