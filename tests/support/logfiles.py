"""All logs of a local cluster, read from the disk: their contents, and whether a Secret is in one of them."""

import base64
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from thunderfleet_lib import logtext
from thunderfleet_localcluster.client.cluster import Cluster

from tests.support.api import Api

Json = dict[str, Any]

LEAST = 8
"""Shorter values are no secrets that anyone could recognize."""
_RECORD = re.compile(rb"\S+ (?:stdout|stderr) [FP] (.*)")
"""A line of a container's log; what the container wrote is the group."""


def files(cluster: Cluster) -> list[Path]:
    """The logs of all programs and containers, those of the control plane too. The audit log has requests, and is no log."""
    found = [*cluster.logs.glob("*.log*"), *cluster.folder.root.glob("**/pods/*/logs/*/*.log*")]
    return sorted({path for path in found if path.is_file() and path.name != "audit.log"})


def records(cluster: Cluster, program: str) -> Iterator[Json]:
    """What a program has logged as JSON, on all machines."""
    for path in files(cluster):
        for line in path.read_bytes().splitlines():
            match = _RECORD.match(line)
            entry = logtext.parsed((match[1] if match else line).decode("utf-8", "replace"))
            if entry is not None and entry.get("program") == program:
                yield entry


class Secrets:
    """The values of Secrets, those that are deleted later too."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._values: dict[bytes, str] = {}

    def look(self, namespace: str | None = None) -> None:
        """Remembers the values of all Secrets, or of those of one namespace."""
        path = f"/api/v1/namespaces/{namespace}/secrets" if namespace else "/api/v1/secrets"
        for item in self._api.items(path):
            name = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            for key, text in (item.get("data") or {}).items():
                value = base64.b64decode(text)
                # Certificates are public.
                if len(value) >= LEAST and not value.startswith(b"-----BEGIN CERTIFICATE"):
                    self._values[value] = f"{name}.{key}"

    def needles(self) -> Mapping[bytes, str]:
        """What must be in no log, and the Secret that it is from: whole values, encoded ones, and lines of keys."""
        found: dict[bytes, str] = {}
        for value, name in self._values.items():
            lines = [line for line in value.splitlines() if len(line) >= 32 and not line.startswith(b"-----")]
            found |= dict.fromkeys([value, base64.b64encode(value), *lines], name)
        return found

    def found(self, cluster: Cluster) -> list[str]:
        """Each log with a secret, as ``file: secret``."""
        needles = self.needles()
        said = {path: path.read_bytes() for path in files(cluster)}
        return [f"{path}: {name}" for path, text in said.items() for needle, name in needles.items() if needle in text]
