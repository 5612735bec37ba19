"""Which serving certificates of kubelets are approved, and why. Pure.

The signer (``kubernetes.io/kubelet-serving``) checks the form of a request only. The authority that signs is usually the one
that signs the API server's certificate too, and a kubelet writes the addresses of its Node itself. So it is not enough that a
Node publishes an address: the address must not be one of another Node or of the API server, and DNS names are never approved.
"""

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from thunderfleet_lib.csr.names import NODE_PREFIX, NODES

WAIT_SECONDS = 60.0
"""How long a request may name addresses that its Node does not publish.

A kubelet whose address has changed requests a certificate and updates its Node at the same time.
"""
ADDRESSES = 64
"""How many addresses of one Node count. A kubelet writes them itself, and could write a megabyte of them."""
AGAIN = "the kubelet sends a new request within five minutes; if that is denied too, see its log"
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
"""On Nodes that run an API server. The admission plugin NodeRestriction keeps kubelets from setting it themselves."""
_LOCALHOST = frozenset({"127.0.0.1", "::1"})

Json = dict[str, Any]


def usages_with(purpose: str) -> tuple[frozenset[str], frozenset[str]]:
    """The usages that a kubelet may request; the second are those for RSA keys."""
    return (
        frozenset({"digital signature", purpose}),
        frozenset({"digital signature", "key encipherment", purpose}),
    )


_SERVING_USAGES = usages_with("server auth")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a request, and why. ``Wait``: its Node does not exist or does not publish the addresses yet."""

    action: Literal["Approve", "Deny", "Wait"]
    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """A certificate request of a kubelet."""

    signer: str
    user: str
    groups: frozenset[str]
    usages: frozenset[str]
    node: str
    """From the common name."""
    dns_names: frozenset[str]
    addresses: frozenset[str]
    """As ``plain_address`` writes them."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a serving request is compared with. Addresses are as ``plain_address`` writes them."""

    published: frozenset[str] | None
    """The addresses of its Node; None if there is no such Node."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Addresses of other Nodes, and their names."""
    api_server: frozenset[str] = frozenset()
    """Addresses of the API server that this Node may not have."""


def decide_serving(request: Request, around: Surroundings, age_seconds: float) -> Verdict:
    """The verdict on a request for a serving certificate that was created ``age_seconds`` ago."""
    if (wrong := _never_right(request, around)) is not None:
        return Verdict("Deny", wrong)
    missing = _not_yet_right(request, around)
    if missing is None:
        return Verdict("Approve", f"Node {request.node} publishes {_listed(request.addresses)}")
    if age_seconds < WAIT_SECONDS:
        return Verdict("Wait", missing.text)
    return Verdict("Deny", f"{missing.text} (waited {WAIT_SECONDS:.0f} s); {missing.remedy}")


def _never_right(request: Request, around: Surroundings) -> str | None:
    name = request.node
    if request.user != NODE_PREFIX + name:
        return f"the requestor {request.user} is not node {name}; the common name must be that of the requestor"
    if NODES not in request.groups:
        return f"the requestor is not in the group {NODES}"
    if request.usages not in _SERVING_USAGES:
        return wrong_usages(request, "server auth")
    if request.dns_names:
        return f"DNS names are not approved, only addresses; remove {_listed(request.dns_names)} from the request"
    if not request.addresses:
        return "the request has no address"
    if reserved := sorted(address for address in request.addresses if address in _LOCALHOST or not _unicast(address)):
        return f"{_listed(reserved)} is not an address of one machine; set addresses in the kubelet's configuration"
    if taken := request.addresses & around.api_server:
        return f"{_listed(taken)} is an address of the API server; only a Node with the label {CONTROL_PLANE_LABEL} may have it"
    return None


class _Missing(NamedTuple):
    """Why the request cannot be approved yet, and what to do if this does not change."""

    text: str
    remedy: str = AGAIN


def _not_yet_right(request: Request, around: Surroundings) -> _Missing | None:
    name = request.node
    if around.published is None:
        return _Missing(f"Node {name} does not exist")
    if missing := request.addresses - around.published:
        return _Missing(f"Node {name} does not publish {_listed(missing)}")
    for address in sorted(request.addresses):
        if (other := around.others.get(address)) is not None:
            remedy = (
                "give the machines different addresses, or delete the Node that no longer has it, such as "
                f"kubectl delete node {other}"
            )
            return _Missing(f"Node {other} publishes {address} too", remedy)
    return None


def wrong_usages(request: Request, purpose: str) -> str:
    """The message about usages other than those for ``purpose``."""
    return f"the usages are {_listed(request.usages)}; allowed: digital signature and {purpose}"


def plain_address(text: str) -> str:
    """An IP address in the one form in which addresses are compared; text that is no address stays as it is.

    TLS clients accept a certificate for ``::ffff:10.0.0.1`` at 10.0.0.1, so both are the same here.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def published_addresses(node: Json) -> frozenset[str]:
    """The addresses in the status of a Node object, at most ``ADDRESSES``."""
    listed = (node.get("status") or {}).get("addresses") or []
    return frozenset(plain_address(str(one.get("address"))) for one in listed[:ADDRESSES])


def is_control_plane(node: Json) -> bool:
    """Whether a Node object has the label of a machine that runs an API server."""
    return CONTROL_PLANE_LABEL in (node["metadata"].get("labels") or {})


def approval_patch(verdict: Verdict, version: str, now: datetime) -> Json:
    """The merge patch of a request's subresource ``approval``. It fails if the request has another version by now."""
    condition = {
        "type": "Approved" if verdict.action == "Approve" else "Denied",
        "status": "True",
        "reason": "Thunderfleet",
        "message": verdict.reason,
        "lastUpdateTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {"metadata": {"resourceVersion": version}, "status": {"conditions": [condition]}}


def _unicast(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return not (address.is_unspecified or address.is_multicast or text == "255.255.255.255")


def _listed(words: Collection[str]) -> str:
    return ", ".join(sorted(words))
