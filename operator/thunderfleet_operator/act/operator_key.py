"""The operator's keys, from their Secret. Plans are signed with the newest; the keys of all groups are derived from them.

The field ``key`` holds the newest key. Every other field holds an earlier one: what was signed with it stays valid.
"""

import base64
import binascii
import logging
import secrets

from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_operator.act.keys import MASTER_BYTES
from thunderfleet_operator.observe.objects.proofs import Keyring

log = logging.getLogger(__name__)

KEY_SECRET = "thunderfleet-operator-key"
KEY_FIELD = "key"
MAX_KEYS = 16


async def operator_keys(kube: Kube, namespace: str, known: Keyring) -> Keyring:
    """Reads the keys; creates the Secret if there is none.

    ``known``: the keys that this process has read before. They stay valid, and a Secret that was deleted meanwhile is created
    again with them, so a running operator loses no key. Raises ApiError, and ``ValueError`` if the Secret holds no valid keys.
    """
    folder = f"/api/v1/namespaces/{namespace}/secrets"
    found = await kube.get_or_none(f"{folder}/{KEY_SECRET}")
    if found is None:
        keys = [secrets.token_bytes(MASTER_BYTES), *known.keys[: MAX_KEYS - 1]]
        fields = [KEY_FIELD, *(f"previous-{number}" for number in range(1, len(keys)))]
        body: Json = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET, "namespace": namespace},
            "immutable": True,
            "data": {field: base64.b64encode(key).decode() for field, key in zip(fields, keys, strict=True)},
        }
        try:
            found = await kube.create(folder, body)
            log.info("created the operator's key: Secret %s/%s", namespace, KEY_SECRET)
        except ApiError as error:
            if error.status != 409:
                raise
            found = await kube.get(f"{folder}/{KEY_SECRET}")
    return Keyring(*_parse(f"Secret {namespace}/{KEY_SECRET}", found.get("data") or {}), *known.keys)


def _parse(name: str, data: Json) -> list[bytes]:
    """The keys, the newest first."""
    again = "Then restart the operator; docs/operate.md describes how to write the Secret"
    lost = f"groups whose key is missing get OperatorKeyLost. {again}"
    if KEY_FIELD not in data:
        raise ValueError(
            f"{name} has no field '{KEY_FIELD}': add it with {MASTER_BYTES} random bytes, and keep the others. {again}"
        )
    if len(data) > MAX_KEYS:
        raise ValueError(f"{name} has {len(data)} fields, at most {MAX_KEYS} are allowed: remove the oldest keys; {lost}")
    keys = []
    for field in (KEY_FIELD, *sorted(data.keys() - {KEY_FIELD})):
        try:
            key = base64.b64decode(data[field], validate=True)
        except (binascii.Error, TypeError, ValueError):
            key = b""
        if len(key) < MASTER_BYTES:
            raise ValueError(
                f"{name} has no key of at least {MASTER_BYTES} bytes in '{field}': restore the field from a backup"
                + (f", or write {MASTER_BYTES} random bytes to it" if field == KEY_FIELD else ", or remove it")
                + f", and keep the others; {lost}"
            )
        keys.append(key)
    return keys
