"""The keys of a cluster, encrypted for one Mac. Pure.

The key is in the line that an administrator carries from Mac to Mac; what is encrypted with it is in the cluster. So neither a
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
    """What was encrypted cannot be read, or is not what it should be."""


def seal(files: Mapping[str, bytes], version: str, *, key: bytes, token: str, random: Callable[[int], bytes]) -> bytes:
    """Encrypt ``files`` with ``key`` for the holder of a token. ``version``: of the Thunderfleet that they are from."""
    content = {"version": version, "files": {name: base64.b64encode(files[name]).decode() for name in SHARED}}
    nonce = random(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, json.dumps(content).encode(), _about(token))


def unseal(data: bytes, *, key: bytes, token: str) -> tuple[Mapping[str, bytes], str]:
    """What ``seal`` encrypted: files and version. Raises SealedError."""
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
    """Authenticated with it: so it cannot be offered to the holder of another token."""
    return f"thunderfleet control plane 1 {token}".encode()
