"""Which certificate requests of kubelets are approved, and why. Pure.

Joining: a bootstrap token gets the client certificate of a Node that does not exist yet, or of the Node that it is bound to.
Serving: a Node gets a server certificate for addresses that it publishes. The signers check none of this.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from cryptography import x509
from cryptography.x509.oid import NameOID

from thunderfleet_controlplane.tokens import (
    BOOTSTRAPPERS,
    CLIENT_SIGNER,
    NODE_NAME,
    NODES,
    SERVING_SIGNER,
    USER_PREFIX,
    bound_names,
)

Json = dict[str, Any]

NODE_PREFIX = "system:node:"


def _usages(purpose: str) -> tuple[set[str], set[str]]:
    return {"digital signature", purpose}, {"digital signature", "key encipherment", purpose}


SERVING_USAGES, CLIENT_USAGES = _usages("server auth"), _usages("client auth")


@dataclass(frozen=True)
class Verdict:
    """What to do with a request, and why. ``Wait``: its Node does not exist or does not publish the requested names yet."""

    action: Literal["Approve", "Deny", "Wait"]
    reason: str


@dataclass(frozen=True)
class Request:
    """A certificate request of a kubelet. ``names``: its DNS names and addresses."""

    signer: str
    user: str
    groups: frozenset[str]
    usages: frozenset[str]
    node: str
    names: frozenset[str]


def pending(requests: Iterable[Json]) -> list[Json]:
    """The undecided requests that are decided here.

    Renewals of client certificates are not: Nodes request those themselves, and the controller manager approves them.
    """
    return [item for item in requests if not (item.get("status") or {}).get("conditions") and _ours(item["spec"])]


def _ours(spec: Json) -> bool:
    if spec.get("signerName") == SERVING_SIGNER:
        return True
    return spec.get("signerName") == CLIENT_SIGNER and BOOTSTRAPPERS in (spec.get("groups") or [])


def parse(item: Json) -> Request:
    """The request in a CertificateSigningRequest. Raises ValueError if it cannot be one of a kubelet."""
    spec = item["spec"]
    try:
        csr = x509.load_pem_x509_csr(base64.b64decode(spec["request"]))
        node, names = _node(csr), _names(csr)
    except ValueError:
        raise
    except Exception as error:
        # The library has errors of many classes for extensions and keys that it does not know.
        raise ValueError(f"invalid certificate request: {error}") from error
    groups, usages = frozenset(spec.get("groups") or []), frozenset(spec.get("usages") or [])
    return Request(str(spec.get("signerName")), str(spec.get("username") or ""), groups, usages, node, names)


def decide(request: Request, node: Json | None) -> Verdict:
    """The verdict on a request; ``node``: the Node that it names, or None."""
    return (_decide_serving if request.signer == SERVING_SIGNER else _decide_client)(request, node)


def _decide_client(request: Request, node: Json | None) -> Verdict:
    name = request.node
    if not request.user.startswith(USER_PREFIX):
        return Verdict("Deny", f"the requestor {request.user} is not a bootstrap token")
    if request.usages not in CLIENT_USAGES:
        return _wrong_usages(request, "client auth")
    if request.names:
        return Verdict("Deny", "a client certificate has no DNS names and addresses")
    bound = bound_names(request.groups)
    if bound and name not in bound:
        names = ", ".join(sorted(bound))
        return Verdict("Deny", f"the token is for Node {names}, not for {name}: set nodeName, or use a token for {name}")
    if not bound and node is not None:
        return Verdict(
            "Deny",
            f"Node {name} exists and the token is not bound to it: use the token that `thunderfleet token --node {name}` "
            f"prints, delete the Node (kubectl delete node {name}), or set another nodeName",
        )
    return Verdict("Approve", f"the token is bound to Node {name}" if bound else f"Node {name} does not exist yet")


def _decide_serving(request: Request, node: Json | None) -> Verdict:
    name = request.node
    if request.user != NODE_PREFIX + name:
        return Verdict(
            "Deny", f"the requestor {request.user} is not node {name}; the common name must be that of the requestor"
        )
    if NODES not in request.groups:
        return Verdict("Deny", f"the requestor is not in the group {NODES}")
    if request.usages not in SERVING_USAGES:
        return _wrong_usages(request, "server auth")
    if not request.names:
        return Verdict("Deny", "the request has no address")
    if node is None:
        return Verdict("Wait", f"Node {name} does not exist")
    published = {str(address["address"]) for address in (node.get("status") or {}).get("addresses") or []}
    missing = sorted(request.names - published)
    if missing:
        return Verdict("Wait", f"Node {name} does not publish {', '.join(missing)}")
    return Verdict("Approve", f"Node {name} publishes all requested names")


def _wrong_usages(request: Request, purpose: str) -> Verdict:
    return Verdict("Deny", f"the usages are {', '.join(sorted(request.usages))}; allowed: digital signature and {purpose}")


def _node(csr: x509.CertificateSigningRequest) -> str:
    if not csr.is_signature_valid:
        raise ValueError("the request is not signed with its own key")
    common = _values(csr.subject, NameOID.COMMON_NAME)
    name = common[0].removeprefix(NODE_PREFIX) if len(common) == 1 and common[0].startswith(NODE_PREFIX) else ""
    if not NODE_NAME.fullmatch(name):
        raise ValueError(f"the common name must be {NODE_PREFIX}NAME")
    if _values(csr.subject, NameOID.ORGANIZATION_NAME) != [NODES]:
        raise ValueError(f"the organization must be {NODES}")
    return name


def _names(csr: x509.CertificateSigningRequest) -> frozenset[str]:
    try:
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    found = frozenset(str(value) for kind in (x509.DNSName, x509.IPAddress) for value in names.get_values_for_type(kind))
    if len(list(names)) != len(found):
        raise ValueError("the request must have DNS names and addresses only, without duplicates")
    return found


def _values(subject: x509.Name, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in subject.get_attributes_for_oid(oid)]
