"""The keys of a cluster, encrypted for one Mac. Pure.

The key is in the line that an administrator copies from Mac to Mac; the encrypted data is in the cluster. So neither a
copy of the cluster's data nor a reader of Secrets gets the keys.
"""

import base64
import json
from collections.abc import Callable, Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from thunderfleet_controlplane.daemons.layout import SHARED

NONCE_BYTES = 12
FILE_BYTES = 65536
LIMIT_BYTES = 1 << 19


class SealedError(ValueError):
    """The encrypted data cannot be read, or is invalid."""


def seal(files: Mapping[str, bytes], version: str, *, key: bytes, token: str, random: Callable[[int], bytes]) -> bytes:
    """Encrypt ``files`` with ``key`` for the holder of a token. ``version``: the Thunderfleet version that wrote them."""
    content = {"version": version, "files": {name: base64.b64encode(files[name]).decode() for name in SHARED}}
    nonce = random(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, json.dumps(content).encode(), _about(token))


def unseal(data: bytes, *, key: bytes, token: str) -> tuple[Mapping[str, bytes], str]:
    """The files and the version that ``seal`` encrypted. Raises SealedError."""
    if len(data) > LIMIT_BYTES:
        raise SealedError("they are too large")
    try:
        text = AESGCM(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _about(token))
        content = json.loads(text)
        files = {name: base64.b64decode(content["files"][name], validate=True) for name in SHARED}
        version = str(content["version"])
    except (InvalidTag, ValueError, KeyError, TypeError):
        raise SealedError("they were encrypted with another key, or were changed") from None
    if any(len(file) > FILE_BYTES for file in files.values()):
        raise SealedError("a file is too large")
    return files, version


def _about(token: str) -> bytes:
    """The associated data of the encryption, so that the data cannot be offered to the holder of another token."""
    return f"thunderfleet control plane 1 {token}".encode()
