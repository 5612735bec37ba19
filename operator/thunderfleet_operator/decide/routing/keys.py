"""Routing keys, derived from the operator's keys, so that the Secret from which routers read them can be written again."""

import base64
import hmac

from thunderfleet_crds.exchange.plan import Plan, RouterPlan
from thunderfleet_crds.exchange.routing import (
    KEY_FIELD_PREFIX,
    MAX_ROUTING_KEYS,
    OPERATOR_FIELD,
    ROUTING_KEY_BYTES,
    ROUTING_SECRET,
    TLS_CERTIFICATE,
    TLS_KEY,
    credential_digest,
    group_credential,
    key_id,
)
from thunderfleet_crds.names import LABEL_MANAGED_BY, MANAGED_BY

from thunderfleet_operator.observe.objects.proofs import Keyring

Manifest = dict[str, object]


def routing_key(master: bytes) -> bytes:
    """The routing key that belongs to one of the operator's keys. It does not reveal that key."""
    return hmac.digest(master, b"thunderfleet/routing-key/v1", "sha256")[:ROUTING_KEY_BYTES]


def routing_keys(keys: Keyring) -> dict[str, bytes]:
    """Routing keys by id, the newest first."""
    found = [routing_key(master) for master in keys.keys[:MAX_ROUTING_KEYS]]
    return {key_id(key): key for key in found}


def router_plan(plan: Plan, keys: Keyring) -> RouterPlan:
    """How the gateway of a new placement recognizes routers."""
    key = routing_key(keys.newest)
    credential = group_credential(key, plan.namespace, plan.deployment, plan.uid, plan.index, plan.epoch)
    return RouterPlan(key_id=key_id(key), digest=credential_digest(credential))


def secret(namespace: str, keys: Keyring, certificate: str, key: str, address: str) -> Manifest:
    """The Secret that routers read. ``certificate`` and ``key``: PEM texts. ``address``: of this replica, which leads."""
    fields = {f"{KEY_FIELD_PREFIX}{name}": value for name, value in routing_keys(keys).items()}
    texts = {TLS_CERTIFICATE: certificate, TLS_KEY: key, OPERATOR_FIELD: address}
    fields |= {name: text.encode() for name, text in texts.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": ROUTING_SECRET, "namespace": namespace, "labels": {LABEL_MANAGED_BY: MANAGED_BY}},
        "type": "Opaque",
        "data": {name: base64.b64encode(value).decode() for name, value in fields.items()},
    }
