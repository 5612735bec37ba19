"""Models at a URI: which URIs are valid, and the name under which Macs keep the files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

MANIFEST_FILE: Final = "SHA256SUMS"
"""The file of the folder that lists the others with their hashes."""
HTTPS_PORT: Final = 443
MAX_URI: Final = 400
MAX_LAST_PART: Final = 96
HOST_PATTERN: Final = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(:[1-9][0-9]{0,4})?"
"""A host with a port, as the chart's value uris.hosts and URIs have it."""
URI_PATTERN: Final = rf"^https://{HOST_PATTERN}/([A-Za-z0-9_~-][A-Za-z0-9._~-]*/)*$"
URI_MESSAGE: Final = (
    "uri must have the form https://host[:port]/folder/: a host in lower case, then folders of letters, digits and ._~- that "
    "do not begin with a dot, and / at the end; without user, query and fragment"
)
SHA256_PATTERN: Final = "^[0-9a-f]{64}$"
SHA256_MESSAGE: Final = f"sha256 must be the SHA-256 of the folder's file {MANIFEST_FILE}: 64 hexadecimal digits in lower case"
_NAME: Final = re.compile(r"uri\.[0-9a-f]{40}/.+")


def check_uri(uri: str) -> str:
    """The same URI. Raises ValueError if it is not the URI of a folder."""
    if len(uri) > MAX_URI or not re.fullmatch(URI_PATTERN, uri):
        raise ValueError(URI_MESSAGE)
    return uri


def check_sha256(text: str) -> str:
    """The same hash. Raises ValueError if it is invalid."""
    if not re.fullmatch(SHA256_PATTERN, text):
        raise ValueError(SHA256_MESSAGE)
    return text


def host_of(uri: str) -> str:
    """The host of a URL, with its port unless that is 443. Raises ValueError for an invalid port."""
    parts = urlsplit(uri)
    port = "" if parts.port in (None, HTTPS_PORT) else f":{parts.port}"
    return f"{parts.hostname or ''}{port}"


def is_listed(host: str, hosts: Iterable[str]) -> bool:
    """Whether a host (from ``host_of``) is in a list of the chart's values."""
    return host in {one.removesuffix(f":{HTTPS_PORT}") for one in hosts}


def not_allowed(host: str, hosts: Iterable[str]) -> str | None:
    """Why Macs may not send requests to a host (from ``host_of``); None if they may."""
    if is_listed(host, hosts):
        return None
    known = ", ".join(sorted(hosts)) or "none"
    return f"Macs are not allowed to fetch models from {host}: add it to the chart's value uris.hosts (allowed now: {known})"


def served_name(uri: str) -> str:
    """The name of the model for clients: the last two folders of the URI, or its host."""
    return "/".join(urlsplit(uri).path.strip("/").split("/")[-2:]) or host_of(uri)


def kept_name(uri: str) -> str:
    """The name of the repository under which Macs keep the files.

    No account of the hub can have it, and each URI has its own: files are shared by hash only within one folder of one host.
    """
    last = re.sub(r"[^A-Za-z0-9]+", "-", served_name(uri).rpartition("/")[2])[:MAX_LAST_PART].strip("-") or "model"
    return f"uri.{hashlib.sha256(uri.encode()).hexdigest()[:40]}/{last}"


def is_kept_name(repository: str | None) -> bool:
    """Whether a repository has the name of a folder at a URI."""
    return repository is not None and _NAME.fullmatch(repository) is not None
