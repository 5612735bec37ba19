"""Approves the serving certificates of kubelets; the API server itself never does.

The signer checks nothing of what is asked, so this must: whoever asks, the name in the request, its groups, its usages and
every address in it have to belong to the one Node that they name. ``decide`` is that rule; ``Approver`` reads and acts.
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
    """What to do with a request, and why. ``Wait``: its Node does not publish (yet) what the request names."""

    action: Literal["Approve", "Deny", "Wait"]
    reason: str


def node_of(request: dict[str, Any]) -> str | None:
    """Name of the Node that the requestor says it is, or None."""
    user = str(request["spec"].get("username") or "")
    return user.removeprefix(PREFIX) if user.startswith(PREFIX) and user != PREFIX else None


def decide(request: dict[str, Any], node: dict[str, Any] | None) -> Verdict:
    """The verdict on a request of the kubelet-serving signer; ``node`` is the Node of the requestor's name, if there is one."""
    spec = request["spec"]
    name = node_of(request)
    if name is None:
        return Verdict("Deny", f"the requestor {spec.get('username')} is not a node")
    if NODES not in (spec.get("groups") or []):
        return Verdict("Deny", f"the requestor is not in the group {NODES}")
    try:
        csr = x509.load_pem_x509_csr(base64.b64decode(spec["request"]))
        signed = csr.is_signature_valid
    except ValueError as error:
        return Verdict("Deny", f"the request cannot be read: {error}")
    if not signed:
        return Verdict("Deny", "the request is not signed with its own key")
    if _values(csr.subject, NameOID.COMMON_NAME) != [PREFIX + name]:
        return Verdict("Deny", f"the common name is not {PREFIX}{name}")
    if _values(csr.subject, NameOID.ORGANIZATION_NAME) != [NODES]:
        return Verdict("Deny", f"the organization is not {NODES}")
    usages = set(spec.get("usages") or [])
    if usages not in SERVING_USAGES:
        return Verdict("Deny", f"the usages are {', '.join(sorted(usages))}, not digital signature and server auth")
    try:
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return Verdict("Deny", "the request names no address")
    asked = {str(value) for kind in (x509.DNSName, x509.IPAddress) for value in names.get_values_for_type(kind)}
    if len(list(names)) != len(asked) or not asked:
        return Verdict("Deny", "the request names something else than DNS names and addresses, or nothing")
    if node is None:
        return Verdict("Wait", f"there is no Node {name}")
    published = {str(address["address"]) for address in (node.get("status") or {}).get("addresses") or []}
    missing = sorted(asked - published)
    if missing:
        return Verdict("Wait", f"Node {name} does not publish {', '.join(missing)}")
    return Verdict("Approve", f"all names are published by Node {name}")


def _values(subject: x509.Name, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in subject.get_attributes_for_oid(oid)]


def pending(requests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Requests of the signer that nobody has decided."""
    return [
        request
        for request in requests
        if request["spec"].get("signerName") == SIGNER and not (request.get("status") or {}).get("conditions")
    ]


class Approver:
    """Watches requests and decides them until cancelled."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.changed = asyncio.Event()
        self.requests = Reflector(kube, REQUESTS, on_change=self._on_change)
        self.told: dict[str, str] = {}

    def _on_change(self, _: str) -> None:
        self.changed.set()

    async def run(self) -> None:
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
                # A request that waits does so for its Node, which is not watched: look again soon.
                await asyncio.wait_for(self.changed.wait(), RETRY_SECONDS if waiting else None)
            except TimeoutError:
                continue

    async def _decide(self, request: dict[str, Any]) -> bool:
        name = node_of(request)
        node = await self.kube.get_or_none(f"/api/v1/nodes/{name}") if name and "/" not in name else None
        verdict = decide(request, node)
        key = name_of(request)
        if self.told.get(key) != verdict.reason:
            self.told[key] = verdict.reason
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
