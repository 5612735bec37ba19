"""The TLS keys of a group, derived from the operator's key instead of stored.

An operator that restarts derives the same bytes, so it needs no permission to read Secrets outside its own namespace. A group
has one Ed25519 key and one self-signed certificate, which every supervisor presents and which is all that it trusts.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from thunderfleet_crds.exchange.plan import GROUP_TLS_NAME, Plan
from thunderfleet_crds.exchange.routing import OPERATOR_TLS_NAME
from thunderfleet_lib.net import tls

# Fixed, so that the certificate is the same every time it is derived. It is used as long as its placement exists.
NOT_BEFORE = datetime(2020, 1, 1, tzinfo=UTC)
NOT_AFTER = datetime(2120, 1, 1, tzinfo=UTC)
MASTER_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM texts."""

    certificate: str
    key: str


def _derive(master: bytes, info: str, length: int) -> bytes:
    if len(master) < MASTER_BYTES:
        raise ValueError(f"the operator's key has {len(master)} bytes; it needs at least {MASTER_BYTES}")
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info.encode()).derive(master)


def _info(purpose: str, plan: Plan) -> str:
    """The input of a key's derivation. JSON separates the parts, whatever they contain."""
    return json.dumps(["thunderfleet/v2", purpose, plan.namespace, plan.deployment, plan.uid, plan.index, plan.epoch])


def _pair(seed: bytes, serial: bytes, common_name: str, dns_name: str = GROUP_TLS_NAME) -> KeyPair:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = tls.subject(common_name)
    certificate = tls.build_certificate(
        name,
        key.public_key(),
        tls.Issuer(name, key),
        tls.Validity(NOT_BEFORE, NOT_AFTER),
        # 20 octets at most, and positive (RFC 5280).
        serial=int.from_bytes(serial, "big") | 1,
        ca=True,
        key_usages=("digital_signature", "key_cert_sign"),
        extended_usages=(tls.SERVER_AUTH, tls.CLIENT_AUTH),
        alternative_names=(dns_name,),
    )
    return KeyPair(certificate=tls.certificate_pem(certificate).decode(), key=tls.key_pem(key).decode())


def group_keys(master: bytes, plan: Plan) -> KeyPair:
    """The pair of one placement, unique for its namespace, deployment (name and UID), group and epoch.

    The certificate's common name is derived too: a handshake does not reveal the UID. Raises ``ValueError`` for a
    master key that is too short to be one.
    """
    seed, serial = _derive(master, _info("key", plan), 32), _derive(master, _info("serial", plan), 19)
    return _pair(seed, serial, f"group-{_derive(master, _info('name', plan), 16).hex()}")


def router_pair(master: bytes) -> KeyPair:
    """The pair with which routers and the operator recognize each other. Raises ``ValueError`` as ``group_keys`` does."""
    seed, serial = _derive(master, "thunderfleet/router/key/v1", 32), _derive(master, "thunderfleet/router/serial/v1", 19)
    return _pair(seed, serial, "thunderfleet-router", OPERATOR_TLS_NAME)


def secret_name(master: bytes, plan: Plan) -> str:
    """The name of the placement's Secret. It cannot be predicted, so no other object can have it already."""
    return f"{plan.name}-{_derive(master, _info('secret', plan), 5).hex()}"


def unsigned_group_keys(master: bytes, plan: Plan) -> KeyPair:
    """The key pair of a placement from a version that did not sign plans. Used only to connect to such groups."""
    label = f"{plan.uid}/{plan.index}/{plan.epoch}"
    seed, serial = _derive(master, f"thunderfleet/key/{label}", 32), _derive(master, f"thunderfleet/serial/{label}", 19)
    return _pair(seed, serial, f"{plan.uid[:40]}-{plan.index}-e{plan.epoch}")
