"""Names of images: ``registry/repository:tag`` and ``registry/repository@sha256:…``. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

DOCKER, DOCKER_HOST = "docker.io", "registry-1.docker.io"
"""The registry of this name is served by a host of another name."""

_HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:]{2,39}\])(:[0-9]{1,5})?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LOOPBACK = re.compile(r"127(\.[0-9]{1,3}){3}")
MAX_NAME = 255


@dataclass(frozen=True)
class Reference:
    """An image in a registry. ``registry``: host, and port if it is named. ``digest`` wins over ``tag``; one is not empty."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """``registry/repository``."""
        return f"{self.registry}/{self.repository}"

    @property
    def host(self) -> str:
        """The server of the registry: host, and port if the name has one."""
        return DOCKER_HOST if self.registry == DOCKER else self.registry

    @property
    def target(self) -> str:
        """The tag or digest to request."""
        return self.digest or self.tag

    def __str__(self) -> str:
        """The name in full."""
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


def parse(text: str) -> Reference | None:
    """The image that ``text`` names; None if it names no registry. Raises ValueError.

    As elsewhere, the first part names a registry if it has a dot or a port, or is ``localhost``.
    """
    first, slash, rest = text.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        return None
    if not _HOST.fullmatch(first):
        raise ValueError(f"{text!r}: {first!r} is not the host of a registry, such as registry.example.com:5000")
    named, at, digest = rest.partition("@")
    path, colon, tag = named.partition(":")
    if at and not _DIGEST.fullmatch(digest):
        raise ValueError(f"{text!r}: a digest is sha256: and 64 hexadecimal digits in lower case")
    if colon and not _TAG.fullmatch(tag):
        raise ValueError(
            f"{text!r}: a tag has up to 128 letters, digits, '_', '.' and '-', and does not begin with one of the last two"
        )
    if not _REPOSITORY.fullmatch(path) or len(first) + 1 + len(path) > MAX_NAME:
        raise ValueError(
            f"{text!r}: a repository has lower-case letters, digits, '.', '_', '-' and '/', up to {MAX_NAME} in all"
        )
    if first == "index.docker.io":
        first = DOCKER
    if first == DOCKER and "/" not in path:
        path = f"library/{path}"
    return Reference(first, path, tag or ("" if digest else "latest"), digest)


def is_plain(authority: str, plain_http: Iterable[str]) -> bool:
    """Whether a registry is used without TLS: one of ``plain_http``, or on this machine, where nothing can intercept them."""
    host = authority.rpartition(":")[0] if re.search(r":\d+$", authority) else authority
    return authority in plain_http or host in ("localhost", "[::1]") or _LOOPBACK.fullmatch(host) is not None


def is_allowed(reference: Reference, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns covers the image; see ``covers``."""
    return any(covers(pattern, reference) for pattern in patterns)


def covers(pattern: str, reference: Reference) -> bool:
    """Whether ``pattern`` covers the image.

    A pattern is ``*``, or a registry, or ``*.`` and the end of its host; and optionally ``/`` and the first parts of the
    repository.
    """
    if pattern == "*":
        return True
    host, _, path = pattern.partition("/")
    named = reference.registry.endswith(host[1:]) if host.startswith("*.") else reference.registry == host
    return named and (not path or f"{reference.repository}/".startswith(f"{path.rstrip('/')}/"))


def is_named(host: str, port: int | None, scheme: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns names a host of a URL. ``*`` names none; one without a port names the usual port only."""
    name = f"[{host}]" if ":" in host else host
    names = {f"{name}:{port}"} | ({name} if port == {"https": 443, "http": 80}.get(scheme) else set())
    found = (pattern.partition("/")[0].lower() for pattern in patterns if pattern != "*")
    return any(one in names or (one.startswith("*.") and any(name.endswith(one[1:]) for name in names)) for one in found)
