"""A look at the API server without a program for it: tests that wait look several times a second."""

import base64
import http.client
import json
import os
import ssl
import tempfile
from typing import Any
from urllib.parse import urlsplit

import yaml
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError

Json = dict[str, Any]

LOOK_SECONDS = 3.0
OURS = "/apis/thunderfleet.io/v1alpha1"


class Away(LocalClusterError):
    """Nobody answered in time."""


class Api:
    """GETs from the API server as its administrator, each with a limit. Raises Away."""

    def __init__(self, cluster: Cluster, seconds: float = LOOK_SECONDS) -> None:
        self._seconds = seconds
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        user, server = config["users"][0]["user"], config["clusters"][0]["cluster"]
        self._at = urlsplit(server["server"])
        self._context = ssl.create_default_context(cadata=base64.b64decode(server["certificate-authority-data"]).decode())
        pair = base64.b64decode(user["client-certificate-data"]) + b"\n" + base64.b64decode(user["client-key-data"])
        load_pair(self._context, pair.decode())

    def get(self, path: str, seconds: float | None = None) -> Json | None:
        """The object or list at ``path``; None when there is none."""
        connection = http.client.HTTPSConnection(
            self._at.hostname or "", self._at.port, timeout=seconds or self._seconds, context=self._context
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Away(f"the API server: {error!r}") from error
        finally:
            connection.close()
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise Away(f"the API server says {answer.status} to {path}")
        found: Json = json.loads(body)
        return found

    def items(self, path: str) -> list[Json]:
        found = self.get(path)
        return found["items"] if found else []


def load_pair(context: ssl.SSLContext, pem: str) -> None:
    """Gives a TLS context a certificate and key; ``ssl`` takes them from files only."""
    descriptor, name = tempfile.mkstemp()
    try:
        os.write(descriptor, pem.encode())
        context.load_cert_chain(name)
    finally:
        os.close(descriptor)
        os.unlink(name)
