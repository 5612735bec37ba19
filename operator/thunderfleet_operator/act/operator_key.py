"""The operator's own key, from its Secret. The keys of all groups are derived from it."""

import base64
import logging
import secrets

from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_operator.act.keys import MASTER_BYTES

log = logging.getLogger(__name__)

KEY_SECRET = "thunderfleet-operator-key"
KEY_FIELD = "key"


async def operator_key(kube: Kube, namespace: str) -> bytes:
    """Reads the key; creates it at the first start. Raises ApiError, and ``ValueError`` if the Secret holds no valid key."""
    folder = f"/api/v1/namespaces/{namespace}/secrets"
    found = await kube.get_or_none(f"{folder}/{KEY_SECRET}")
    if found is None:
        body: Json = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET, "namespace": namespace},
            "immutable": True,
            "data": {KEY_FIELD: base64.b64encode(secrets.token_bytes(MASTER_BYTES)).decode()},
        }
        try:
            found = await kube.create(folder, body)
            log.info("created the operator's key: Secret %s/%s", namespace, KEY_SECRET)
        except ApiError as error:
            if error.status != 409:
                raise
            found = await kube.get(f"{folder}/{KEY_SECRET}")
    key = base64.b64decode((found.get("data") or {}).get(KEY_FIELD, ""))
    if len(key) < MASTER_BYTES:
        name = f"Secret {namespace}/{KEY_SECRET}"
        found = f"{name} has no '{KEY_FIELD}' of at least {MASTER_BYTES} bytes"
        raise ValueError(f"{found}: delete the Secret and restart the operator")
    return key
