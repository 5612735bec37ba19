"""Requests to the API server without a kubectl process for each: tests that wait read several times a second."""

import base64
import contextlib
import http.client
import json
import queue
import threading
import weakref
from collections.abc import Iterator
from socket import SHUT_RDWR
from typing import Any
from urllib.parse import urlencode, urlsplit

from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support import yamltext
from tests.support.network.https import ask, client_context, get

Json = dict[str, Any]

REQUEST_SECONDS = 3.0
WATCH_SECONDS = 600
OURS = "/apis/thunderfleet.io/v1alpha1"
CLUSTERED = {
    **{name: f"{OURS}/nodeprofiles" for name in ("np", "nodeprofiles")},
    **{name: f"{OURS}/thunderboltlinks" for name in ("tbl", "thunderboltlinks")},
    **{name: "/api/v1/nodes" for name in ("node", "nodes")},
}
"""Where objects without a namespace are, by the name that kubectl has for their kind."""
NAMESPACED = {
    "md": (OURS, "modeldeployments"),
    **{f"{kind}{s}": ("/api/v1", f"{kind}s") for kind in ("pod", "configmap", "secret", "service", "event") for s in ("", "s")},
    **{f"lease{s}": ("/apis/coordination.k8s.io/v1", "leases") for s in ("", "s")},
}
SELECTORS = {"-l": "labelSelector", "--field-selector": "fieldSelector"}


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


def path_of(*words: str) -> str | None:
    """The path that ``kubectl get`` with these words reads; None for kinds and options that this function does not support."""
    plain: list[str] = []
    query: dict[str, str] = {}
    namespace = "namespaces/default/"
    rest = iter(words)
    for word in rest:
        if word in SELECTORS:
            query[SELECTORS[word]] = next(rest)
        elif word in ("-n", "-A"):
            namespace = "" if word == "-A" else f"namespaces/{next(rest)}/"
        elif word.startswith("-"):
            return None
        else:
            plain.append(word)
    kind, *names = plain
    if kind in CLUSTERED:
        path = CLUSTERED[kind]
    elif kind in NAMESPACED:
        group, plural = NAMESPACED[kind]
        path = f"{group}/{namespace}{plural}"
    else:
        return None
    return "/".join((path, *names)) + (f"?{urlencode(query)}" if query else "")


class Api:
    """Requests to the API server as its administrator, each with a limit. Raises Unreachable.

    It keeps its connections as long as it exists: a TLS handshake costs both sides more than the request.
    """

    def __init__(self, cluster: Cluster, seconds: float = REQUEST_SECONDS) -> None:
        self._seconds = seconds
        config = yamltext.load(cluster.kubeconfig.read_text())
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
        if not found:
            return []
        # The server leaves out what all items of a list have in common.
        common = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [{**common, **item} for item in found["items"]]

    @contextlib.contextmanager
    def watched(self, path: str) -> Iterator[list[Json]]:
        """The object at ``path`` as it is at the start and after every change, for as long as the context lasts."""
        collection, _, name = path.rpartition("/")
        query = urlencode({"watch": "1", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": WATCH_SECONDS})
        connection = http.client.HTTPSConnection(
            self._server.hostname or "", self._server.port, timeout=WATCH_SECONDS, context=self._context
        )
        seen: list[Json] = []

        def read(response: http.client.HTTPResponse) -> None:
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                for row in response:
                    seen.append(json.loads(row)["object"])

        with contextlib.closing(connection):
            connection.request("GET", f"{collection}?{query}")
            # The socket by itself: the connection gives it to the response.
            socket, response = connection.sock, connection.getresponse()
            if response.status != 200:
                raise Unreachable(f"the API server returns {response.status} for a watch of {path}")
            reader = threading.Thread(target=read, args=(response,), daemon=True)
            reader.start()
            try:
                yield seen
            finally:
                with contextlib.suppress(OSError):
                    socket.shutdown(SHUT_RDWR)
                reader.join(self._seconds)

    def apply(self, path: str, item: Json) -> None:
        """Creates an object, or changes it to ``item``, as ``kubectl apply --server-side`` does. Unknown fields are refused."""
        query = urlencode({"fieldManager": "tests", "force": "true", "fieldValidation": "Strict"})
        self._written("PATCH", f"{path}?{query}", item, "application/apply-patch+yaml")

    def patch(self, path: str, change: Json) -> None:
        """Changes an object by a merge patch, as ``kubectl patch --type=merge`` does. Unknown fields are refused."""
        self._written("PATCH", f"{path}?fieldValidation=Strict", change, "application/merge-patch+json")

    def _written(self, method: str, path: str, body: Json, kind: str) -> None:
        if self.send(method, path, body, kind) == 404:
            raise Unreachable(f"the API server returns 404 for {method} {path}")

    def send(self, method: str, path: str, body: Json | None = None, kind: str = "application/json") -> int:
        """The status of a request that writes: below 400, or 404."""
        # Not on a kept connection, which the server may close while it reads: the request would be sent twice.
        connection = http.client.HTTPSConnection(
            self._server.hostname or "", self._server.port, timeout=self._seconds, context=self._context
        )
        with contextlib.closing(connection):
            try:
                status, text = ask(connection, method, path, None if body is None else json.dumps(body), kind)
            except OSError as error:
                raise Unreachable(f"the API server: {error!r}") from error
        if status >= 400 and status != 404:
            raise Unreachable(f"the API server returns {status} for {method} {path}: {text.decode(errors='replace')}")
        return status

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
