"""Signatures by which the operator recognizes its plans and pods: an HMAC-SHA256 over their content, with the operator's key.

Any user who may write ConfigMaps or pods in a namespace can write objects that look like the operator's, but only the operator
can sign them. A signature covers the namespace and the name of its object, so it is not valid for a copy elsewhere.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

VERSION = "v1"
KEY_ID_BYTES = 8

Statement = Mapping[str, object]
"""What a signature covers, as JSON values."""


class Proof(StrEnum):
    """What the signature of an object proves."""

    VALID = "Valid"
    """The operator made the object."""
    NONE = "None"
    """There is no signature: an older version of the operator, or another client, created the object."""
    UNKNOWN_KEY = "UnknownKey"
    """The key that the signature names is not known: the key has been lost, or the signature is forged."""
    WRONG = "Wrong"
    """The object or its signature is not as the operator wrote it."""


class Purpose(StrEnum):
    """What is signed. A signature for one purpose is not valid for another."""

    PLAN = "plan"
    POD = "pod"
    FETCH = "fetch"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a signature proves. ``key_id``: the key that it was made with, if it is valid."""

    proof: Proof
    key_id: str = ""


def _canonical(statement: Statement) -> bytes:
    return json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest(statement: Statement) -> str:
    """SHA-256 of a statement, in hexadecimal digits."""
    return hashlib.sha256(_canonical(statement)).hexdigest()


def key_id(key: bytes) -> str:
    """The name of the key in a signature. It does not reveal the key."""
    return hmac.digest(key, b"thunderfleet/key-id/v1", "sha256")[:KEY_ID_BYTES].hex()


def _mac(key: bytes, purpose: Purpose, statement: Statement) -> str:
    signing = hmac.digest(key, f"thunderfleet/signature/v1/{purpose}".encode(), "sha256")
    return hmac.digest(signing, _canonical(statement), "sha256").hex()


class Keyring:
    """The operator's keys, the newest first. It signs with the newest and accepts all. Immutable."""

    def __init__(self, *keys: bytes) -> None:
        self.keys = tuple(dict.fromkeys(keys))
        self._by_id = {key_id(key): key for key in self.keys}

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._by_id)})"

    @property
    def newest(self) -> bytes:
        """The key to sign with. Raises ``ValueError`` if there is none."""
        if not self.keys:
            raise ValueError("the operator's key has not been read yet")
        return self.keys[0]

    @property
    def oldest(self) -> bytes | None:
        """The key that versions without signatures used."""
        return self.keys[-1] if self.keys else None

    def key(self, identifier: str) -> bytes | None:
        """The key that a signature names."""
        return self._by_id.get(identifier)

    def sign(self, purpose: Purpose, statement: Statement) -> str:
        """The signature of a statement: version, key and MAC, separated by dots."""
        return f"{VERSION}.{key_id(self.newest)}.{_mac(self.newest, purpose, statement)}"

    def check(self, purpose: Purpose, statement: Statement, signature: object) -> Finding:
        """What a signature proves about a statement."""
        if not signature:
            return Finding(Proof.NONE)
        version, _, rest = str(signature).partition(".")
        named, _, mac = rest.partition(".")
        if version != VERSION:
            return Finding(Proof.WRONG)
        key = self._by_id.get(named)
        if key is None:
            return Finding(Proof.UNKNOWN_KEY)
        if not hmac.compare_digest(_mac(key, purpose, statement).encode(), mac.encode()):
            return Finding(Proof.WRONG)
        return Finding(Proof.VALID, named)


class _Trusting(Keyring):
    """Accepts every object as the operator's."""

    def check(self, purpose: Purpose, statement: Statement, signature: object) -> Finding:
        """Always valid."""
        return Finding(Proof.VALID)


TRUSTING = _Trusting()
"""For the offline plan: files have no signatures, and their user is trusted."""
