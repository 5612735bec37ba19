"""Transfer of a cluster's keys to another Mac: encrypted, in a Secret that one token can read once.

The token's Secret owns Secret, Role and RoleBinding, so they are deleted with it after its use or expiry. The first
Mac that uses it writes a number of its own into the Secret, and others are refused.
"""

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.steps import cluster
from thunderfleet_controlplane.tokens import USER_PREFIX

CLAIM = "thunderfleet.io/claimed-by"
AGAIN = "run `sudo thunderfleet token create --control-plane` on a Mac with a control plane, and use the new line"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system"
CONFLICT = 409
UNKNOWN = (401, 403, 404)
KNOWN_SECONDS = 10.0
POLL_SECONDS = 0.5


def _name(identifier: str) -> str:
    return f"thunderfleet-control-plane-{identifier}"


def objects(identifier: str, uid: str, data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The objects for the holder of a token, as (path of the collection, object). ``uid``: uid of the token's Secret."""
    name, group = _name(identifier), "rbac.authorization.k8s.io"
    owner = {"apiVersion": "v1", "kind": "Secret", "name": f"bootstrap-token-{identifier}", "uid": uid}
    metadata = {"name": name, "namespace": "kube-system", "ownerReferences": [owner]}
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get", "patch"]}
    binding = {
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": USER_PREFIX + identifier}],
    }
    content = {"sealed": base64.b64encode(data).decode()}
    return [
        (cluster.SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": content}),
        (f"{RBAC}/roles", {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}),
        (f"{RBAC}/rolebindings", {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata, **binding}),
    ]


async def offer(kube: Kube, token: str, data: bytes) -> None:
    """Let the holder of ``token`` read ``data``. Raises ApiError."""
    identifier = token.split(".")[0]
    secret = await kube.get(f"{cluster.SECRETS}/bootstrap-token-{identifier}")
    for path, body in objects(identifier, str(secret["metadata"]["uid"]), data):
        await kube.create(path, body)


async def take(server: str, ca: Path, token: str, claim: str) -> bytes:
    """Read the keys, unless another Mac has read them. ``claim``: the same in every run on this Mac. Raises InstallError."""
    path = f"{cluster.SECRETS}/{_name(token.split('.')[0])}"
    deadline = time.monotonic() + KNOWN_SECONDS
    async with Kube.with_files(server, ca, token=token) as kube:
        while True:
            try:
                secret = await _claimed(kube, path, claim)
                break
            except ApiError as error:
                # Objects that were created through one API server appear in the others a moment later.
                if time.monotonic() < deadline and (error.status in UNKNOWN or error.transient):
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                if error.status in UNKNOWN:
                    raise InstallError(f"the join line was used already, or has expired: {AGAIN}") from None
                raise
    if (secret["metadata"].get("annotations") or {}).get(CLAIM) != claim:
        raise InstallError(f"another Mac uses this line: {AGAIN}")
    try:
        return base64.b64decode(secret["data"]["sealed"], validate=True)
    except (ValueError, KeyError, TypeError):
        raise InstallError(f"the keys in the cluster cannot be read: {AGAIN}") from None


async def _claimed(kube: Kube, path: str, claim: str) -> dict[str, Any]:
    """The Secret, with the claim of the first Mac."""
    secret = await kube.get(path)
    metadata = secret["metadata"]
    if CLAIM in (metadata.get("annotations") or {}):
        return secret
    wanted = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": {CLAIM: claim}}}
    try:
        return await kube.patch(path, wanted)
    except ApiError as error:
        if error.status != CONFLICT:
            raise
        return await kube.get(path)


async def withdraw(kube: Kube, identifier: str) -> None:
    """Delete the offered keys and the token. Raises ApiError."""
    # The token owns the other objects, so they are deleted with it.
    for name in (_name(identifier), f"bootstrap-token-{identifier}"):
        await kube.delete(f"{cluster.SECRETS}/{name}")
