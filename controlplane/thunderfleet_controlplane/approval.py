"""Decides which certificate requests of bootstrap tokens are approved. Pure.

A token gets the client certificate of a Node that does not exist yet, or of the Node that it is bound to. The signer checks
neither. ``thunderfleet_lib.csr.rules`` decides serving certificates.
"""

from collections.abc import Iterable
from typing import Any

from thunderfleet_lib.csr.names import CLIENT_SIGNER, SERVING_SIGNER
from thunderfleet_lib.csr.rules import Request, Verdict, usages_with, wrong_usages

from thunderfleet_controlplane.tokens import BOOTSTRAPPERS, USER_PREFIX, bound_names

Json = dict[str, Any]

CLIENT_USAGES = usages_with("client auth")
SET_NAME = "set nodeName in the file of --config; for `thunderfleet join`, use --name"


def pending(requests: Iterable[Json]) -> list[Json]:
    """The pending requests that this module decides.

    Renewals of client certificates are not among them: Nodes request these, and the controller manager approves them.
    """
    return [item for item in requests if not (item.get("status") or {}).get("conditions") and _ours(item["spec"])]


def is_serving(item: Json) -> bool:
    """Whether a request is for a serving certificate."""
    return bool(item["spec"].get("signerName") == SERVING_SIGNER)


def _ours(spec: Json) -> bool:
    if spec.get("signerName") == SERVING_SIGNER:
        return True
    return spec.get("signerName") == CLIENT_SIGNER and BOOTSTRAPPERS in (spec.get("groups") or [])


def decide_client(request: Request, exists: bool) -> Verdict:
    """The verdict on a request for a client certificate; ``exists``: whether there is a Node of that name."""
    name = request.node
    if not request.user.startswith(USER_PREFIX):
        return Verdict(
            "Deny", f"the requestor {request.user} is not a bootstrap token: run `thunderfleet-kubelet join` with one"
        )
    if request.usages not in CLIENT_USAGES:
        return Verdict("Deny", wrong_usages(request, "client auth"))
    if request.dns_names or request.addresses:
        return Verdict("Deny", "a request for a client certificate must not have DNS names or addresses")
    bound = bound_names(request.groups)
    if bound and name not in bound:
        names = ", ".join(sorted(bound))
        return Verdict(
            "Deny",
            f"the token is for Node {names}, not for {name}: {SET_NAME}, or use a token for {name}",
        )
    if not bound and exists:
        return Verdict(
            "Deny",
            f"Node {name} exists and the token is not bound to it: delete the Node (kubectl delete node {name}), use another "
            f"name ({SET_NAME}), or, on a local cluster, use the token that `thunderfleet local token --node {name}` prints",
        )
    return Verdict("Approve", f"the token is bound to Node {name}" if bound else f"Node {name} does not exist yet")
