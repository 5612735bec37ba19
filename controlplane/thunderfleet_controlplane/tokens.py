"""Bootstrap tokens, and how one is bound to the name of a Node. Pure.

The API server adds the groups in a token's Secret to its user, and shows them in each certificate request. So a group
with a Node's name is sufficient for an approver.
"""

import re
from collections.abc import Iterable
from typing import Any

from thunderfleet_lib.csr.names import NODE_NAME

BOOTSTRAPPERS = "system:bootstrappers"
"""The group of all bootstrap tokens."""
USER_PREFIX = "system:bootstrap:"
_NODE_GROUP = f"{BOOTSTRAPPERS}:thunderfleet:node:"
# The pattern that the API server requires for auth-extra-groups.
_GROUP = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")
NODE_LIMIT = 256 - len(_NODE_GROUP.removeprefix(f"{BOOTSTRAPPERS}:"))


def node_group(node: str) -> str:
    """The group of tokens that are bound to ``node``. Raises ValueError if no group can hold that name.

    A group may not contain dots and a name may not contain colons, so a colon stands for a dot.
    """
    if not NODE_NAME.fullmatch(node):
        raise ValueError(f"{node!r} is not a valid node name; use lower-case letters, digits, '-' and '.', such as 'studio-1'")
    group = _NODE_GROUP + node.replace(".", ":")
    if not _GROUP.fullmatch(group):
        raise ValueError(f"a token can be bound to a node name of up to {NODE_LIMIT} characters; this one has {len(node)}")
    return group


def bound_names(groups: Iterable[str]) -> frozenset[str]:
    """The names of the Nodes that a token with these ``groups`` is bound to; empty for an unbound one."""
    return frozenset(one.removeprefix(_NODE_GROUP).replace(":", ".") for one in groups if one.startswith(_NODE_GROUP))


def bootstrap_token(identifier: str, secret: str, expires: str, description: str, node: str | None = None) -> dict[str, Any]:
    """The Secret of the bootstrap token ``identifier.secret``, which is valid until ``expires`` (RFC 3339).

    ``node``: the only Node that may join with it; None for any that does not exist yet. Raises ValueError as ``node_group``.
    """
    data = {
        "token-id": identifier,
        "token-secret": secret,
        "expiration": expires,
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "description": description,
    }
    if node is not None:
        data["auth-extra-groups"] = node_group(node)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"bootstrap-token-{identifier}", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": data,
    }
