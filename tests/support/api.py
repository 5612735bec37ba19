"""Reads from the API server without a kubectl process for each: tests that wait read several times a second."""

import base64
import http.client
import json
import queue
import weakref
from typing import Any
from urllib.parse import urlsplit

import yaml
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.https import client_context, get

Json = dict[str, Any]

REQUEST_SECONDS = 3.0
OURS = "/apis/thunderfleet.io/v1alpha1"


Idle = queue.SimpleQueue[http.client.HTTPSConnection]
"""Connections that no thread uses."""


class Unreachable(LocalClusterError):
    """No answer in time, or an error instead of one."""


def _taken(idle: Idle) -> http.client.HTTPSConnection | None:
    try:
        return idle.get_nowait()
    except queue.Empty:
        return None


def _close(idle: Idle) -> None:
    while (connection := _taken(idle)) is not None:
        connection.close()


class Api:
    """GETs from the API server as its administrator, each with a limit. Raises Unreachable.

    It keeps its connections as long as it exists: a TLS handshake costs both sides more than the request.
    """

    def __init__(self, cluster: Cluster, seconds: float = REQUEST_SECONDS) -> None:
        self._seconds = seconds
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        user, server = config["users"][0]["user"], config["clusters"][0]["cluster"]
        self._server = urlsplit(server["server"])
        entries = (server["certificate-authority-data"], user["client-certificate-data"], user["client-key-data"])
        self._context = client_context(*(base64.b64decode(entry).decode() for entry in entries))
        self._idle: Idle = queue.SimpleQueue()
        weakref.finalize(self, _close, self._idle)

    def get(self, path: str, seconds: float | None = None) -> Json | None:
        """The object or list at ``path``; None when there is none."""
        limit = seconds or self._seconds
        status, body = self._on_kept_connection(path, limit) or self._on_new_connection(path, limit)
        if status == 404:
            return None
        if status >= 400:
            raise Unreachable(f"the API server returns {status} for {path}")
        found: Json = json.loads(body)
        return found

    def items(self, path: str) -> list[Json]:
        """The items of the list at ``path``; none when there is no such list."""
        found = self.get(path)
        return found["items"] if found else []

    def _on_kept_connection(self, path: str, limit: float) -> tuple[int, bytes] | None:
        """Status and body; None when no connection is kept or the server has closed it."""
        connection = _taken(self._idle)
        if connection is None or connection.sock is None:
            return None
        connection.sock.settimeout(limit)
        try:
            return self._on(connection, path)
        except TimeoutError as error:
            raise Unreachable(f"the API server: {error!r}") from error
        except OSError:
            return None

    def _on_new_connection(self, path: str, limit: float) -> tuple[int, bytes]:
        host, port = self._server.hostname or "", self._server.port
        try:
            return self._on(http.client.HTTPSConnection(host, port, timeout=limit, context=self._context), path)
        except OSError as error:
            raise Unreachable(f"the API server: {error!r}") from error

    def _on(self, connection: http.client.HTTPSConnection, path: str) -> tuple[int, bytes]:
        found = get(connection, path)
        self._idle.put(connection)
        return found
