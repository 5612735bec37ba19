"""Requests of kubelets for serving certificates, as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_lib.csr.names import NODE_PREFIX
from thunderfleet_lib.csr.rules import Request

from thunderfleet_operator.observe.objects.metadata import Json, parse_time
from thunderfleet_operator.observe.objects.nodes import Node


@dataclass(frozen=True, slots=True)
class SentRequest:
    """An undecided request as the kubelet of a Node has sent it."""

    name: str
    uid: str
    version: str
    created: datetime
    node: str
    """The Node whose kubelet sent it."""
    spec: Json


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request that has been parsed. ``content``: what it contains, or why it cannot be a request of a kubelet."""

    sent: SentRequest
    content: Request | str


@dataclass(frozen=True, slots=True)
class ObservedRequests:
    """The requests of one Node that are decided in one round."""

    node: Node
    requests: tuple[ReadRequest, ...]
    left: int
    """Number of other requests, which the next round decides."""
    addresses: Mapping[str, tuple[str, ...]]
    """By address, the Nodes that publish it."""
    api_server: frozenset[str]
    """Addresses of the API server."""
    now: datetime


def read_request(item: Json) -> SentRequest | None:
    """The value of a CertificateSigningRequest; None if there is nothing to decide."""
    spec, metadata = item.get("spec"), item["metadata"]
    created = parse_time(metadata.get("creationTimestamp"))
    if spec is None or created is None or metadata.get("deletionTimestamp"):
        return None
    return SentRequest(
        name=str(metadata["name"]),
        uid=str(metadata.get("uid") or ""),
        version=str(metadata.get("resourceVersion") or ""),
        created=created,
        node=str(spec["username"]).removeprefix(NODE_PREFIX),
        spec=spec,
    )
