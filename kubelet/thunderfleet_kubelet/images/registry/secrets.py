"""User names and passwords for registries, from the pull secrets of a pod. Pure."""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from thunderfleet_kubelet.images.registry.reference import Reference, covers

MAX_CREDENTIALS = 8
"""How many of them are tried for one image."""
CONFIG, OLD_CONFIG = ".dockerconfigjson", ".dockercfg"


@dataclass(frozen=True)
class Credential:
    """Never printed: neither field is in the representation."""

    user: str = field(repr=False)
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def mark(self) -> str:
        """A hash by which the store recognizes the credential."""
        return hashlib.sha256(f"{self.user}\0{self.password}".encode()).hexdigest()


def credentials(secrets: Iterable[Mapping[str, bytes]], reference: Reference) -> list[Credential]:
    """Credentials for the image's registry, the most specific first. ``secrets``: their data; unreadable ones are ignored."""
    found: list[tuple[int, Credential]] = []
    for data in secrets:
        for server, entry in _entries(data):
            pattern, credential = _pattern(server), _credential(entry)
            if credential is not None and pattern and pattern != "*" and covers(pattern, reference):
                found.append((len(pattern), credential))
    ordered = [credential for _, credential in sorted(found, key=lambda one: -one[0])]
    return list(dict.fromkeys(ordered))[:MAX_CREDENTIALS]


def _entries(data: Mapping[str, bytes]) -> Iterable[tuple[str, Any]]:
    try:
        whole = json.loads(data.get(CONFIG) or data.get(OLD_CONFIG) or b"{}") or {}
        entries = whole.get("auths") if CONFIG in data else whole
        return list((entries or {}).items())
    except (ValueError, AttributeError, RecursionError):
        return []


def _pattern(server: str) -> str:
    """The registry and path of an entry: ``https://index.docker.io/v1/`` is that of docker.io."""
    try:
        parts = urlsplit(server if "://" in server else f"//{server}")
    except ValueError:
        return ""
    host, path = parts.netloc.rpartition("@")[2], parts.path.strip("/")
    if host in ("index.docker.io", "registry-1.docker.io"):
        host = "docker.io"
    return f"{host}/{path}" if path and path not in ("v1", "v2") else host


def _credential(entry: Any) -> Credential | None:
    if not isinstance(entry, dict):
        return None
    user, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if not user and entry.get("auth"):
        try:
            user, _, password = base64.b64decode(str(entry["auth"]), validate=False).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        password = password.rstrip("\0")
    return Credential(user, password) if user else None
