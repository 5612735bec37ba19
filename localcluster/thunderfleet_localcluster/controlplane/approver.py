"""Approves serving certificates of kubelets, which no controller of Kubernetes does.

The signer checks nothing, so this does: the requestor, its groups, and the names and usages in the request must all belong to
one Node. ``decide`` is that rule (pure); ``Approver`` watches requests and acts.
"""

import asyncio
import base64
import datetime
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from cryptography import x509
from cryptography.x509.oid import NameOID
from thunderfleet_lib.kube import ApiError, Kube, Reflector, name_of

log = logging.getLogger(__name__)

SIGNER = "kubernetes.io/kubelet-serving"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
PREFIX = "system:node:"
NODES = "system:nodes"
SERVING_USAGES = ({"digital signature", "server auth"}, {"digital signature", "key encipherment", "server auth"})
RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class Verdict:
    """What to do with a request, and why. ``Wait``: its Node does not exist or does not publish the requested names yet."""

    action: Literal["Approve", "Deny", "Wait"]
    reason: str


def node_of(request: dict[str, Any]) -> str | None:
    """Name of the Node that the requestor claims to be; None if it is not a node."""
    user = str(request["spec"].get("username") or "")
    return user.removeprefix(PREFIX) if user.startswith(PREFIX) and user != PREFIX else None


def decide(request: dict[str, Any], node: dict[str, Any] | None) -> Verdict:
    """The verdict on a request for the signer kubelet-serving; ``node``: the Node that the requestor claims to be, or None."""
    spec = request["spec"]
    name = node_of(request)
    if name is None:
        return Verdict("Deny", f"the requestor {spec.get('username')} is not a node")
    if NODES not in (spec.get("groups") or []):
        return Verdict("Deny", f"the requestor is not in the group {NODES}")
    usages = set(spec.get("usages") or [])
    if usages not in SERVING_USAGES:
        return Verdict("Deny", f"the usages are {', '.join(sorted(usages))}; allowed: digital signature and server auth")
    try:
        csr = x509.load_pem_x509_csr(base64.b64decode(spec["request"]))
        names = _names(csr, name)
    except ValueError as error:
        return Verdict("Deny", str(error) or "invalid certificate request")
    if node is None:
        return Verdict("Wait", f"Node {name} does not exist")
    published = {str(address["address"]) for address in (node.get("status") or {}).get("addresses") or []}
    missing = sorted(names - published)
    if missing:
        return Verdict("Wait", f"Node {name} does not publish {', '.join(missing)}")
    return Verdict("Approve", f"Node {name} publishes all requested names")


def _names(csr: x509.CertificateSigningRequest, node: str) -> set[str]:
    """DNS names and addresses in a certificate request of ``node``. Raises ValueError if it is not valid for that Node."""
    if not csr.is_signature_valid:
        raise ValueError("the request is not signed with its own key")
    if _values(csr.subject, NameOID.COMMON_NAME) != [PREFIX + node]:
        raise ValueError(f"the common name is not {PREFIX}{node}")
    if _values(csr.subject, NameOID.ORGANIZATION_NAME) != [NODES]:
        raise ValueError(f"the organization is not {NODES}")
    try:
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise ValueError("the request has no address") from error
    found = {str(value) for kind in (x509.DNSName, x509.IPAddress) for value in names.get_values_for_type(kind)}
    if not found or len(list(names)) != len(found):
        raise ValueError("the request must have DNS names and addresses only, at least one, without duplicates")
    return found


def _values(subject: x509.Name, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in subject.get_attributes_for_oid(oid)]


def pending(requests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Undecided requests for the signer."""
    return [
        request
        for request in requests
        if request["spec"].get("signerName") == SIGNER and not (request.get("status") or {}).get("conditions")
    ]


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
            for request in pending(self.requests.items.values()):
                try:
                    waiting |= not await self._decide(request)
                except ApiError as error:
                    waiting = True
                    log.warning("certificate request %s: %s", name_of(request), error)
            try:
                # A waiting request waits for its Node, which is not watched.
                await asyncio.wait_for(self.changed.wait(), RETRY_SECONDS if waiting else None)
            except TimeoutError:
                continue

    async def _decide(self, request: dict[str, Any]) -> bool:
        name = node_of(request)
        node = await self.kube.get_or_none(f"/api/v1/nodes/{name}") if name and "/" not in name else None
        verdict = decide(request, node)
        key = name_of(request)
        if self._logged.get(key) != verdict.reason:
            self._logged[key] = verdict.reason
            log.info("certificate request %s: %s: %s", key, verdict.action, verdict.reason)
        if verdict.action == "Wait":
            return False
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "Approved" if verdict.action == "Approve" else "Denied",
            "status": "True",
            "reason": "KubeletServing",
            "message": verdict.reason,
            "lastUpdateTime": now,
        }
        await self.kube.patch(
            f"{REQUESTS}/{key}/approval",
            {"metadata": {"resourceVersion": request["metadata"]["resourceVersion"]}, "status": {"conditions": [condition]}},
        )
        return True
