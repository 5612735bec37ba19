"""Reads the cluster's state during faults: directly, with short limits, and without a process per read."""

import base64
import contextlib
import http.client
import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from thunderfleet_crds.exchange.group import STATE_PATH
from thunderfleet_crds.vocabulary import GroupPhase, RankPhase
from thunderfleet_localcluster.client.cluster import Cluster

from tests.support import audit
from tests.support.api import REQUEST_SECONDS, Api, Unreachable
from tests.support.line import SYSTEM, Deployment
from tests.support.network.https import client_context, get
from tests.support.network.proxy import proxy_headers

Json = dict[str, Any]

SAMPLE_SECONDS = 0.4
SHORTEST_SECONDS = 30
"""The shortest time over which a rate of writes is judged: a group starts in a few seconds, and writes in each of them."""
MOST_FREQUENT = 12
MANAGED = "app.kubernetes.io%2Fmanaged-by%3Dthunderfleet-operator"
EPOCH_LABEL = "thunderfleet.io/epoch"
OURS = (f"system:serviceaccount:{SYSTEM}:", "system:node:mac-")
"""Users of the operator, the agents and the Macs' kubelets."""


@dataclass(frozen=True)
class Told:
    """The fields of rank 0's group state that the suite uses; the cluster may run another version than this checkout."""

    phase: GroupPhase
    attempt: int
    message: str
    present: int
    """Ranks that have joined."""
    ranks: int
    measured: bool
    """Whether there is a benchmark."""

    @classmethod
    def read(cls, body: bytes) -> "Told":
        found = json.loads(body)
        phases = [report["phase"] for report in found["ranks"]]
        present = sum(phase != RankPhase.ABSENT.value for phase in phases)
        measured = found.get("benchmark") is not None
        return cls(GroupPhase(found["phase"]), found["attempt"], found["message"], present, len(phases), measured)

    @property
    def waits_for_one(self) -> bool:
        """Whether the leader waits in the barrier for the last rank."""
        return self.phase is GroupPhase.WAITING and self.present == self.ranks - 1


class GroupDoor:
    """Reads the group's state from rank 0 as the operator does: from its control port, with the group's keys."""

    def __init__(self, cluster: Cluster, plan: Json, keys: Mapping[str, str]) -> None:
        self._proxy, self._proxy_headers = urlsplit(cluster.proxy), proxy_headers(cluster.proxy)
        leader = plan["ranks"][0]
        self._address, self._port = str(leader["address"]), int(leader["controlPort"])
        certificate, key = (base64.b64decode(keys[name]).decode() for name in ("tls.crt", "tls.key"))
        self._context = client_context(certificate, certificate, key)
        self._context.check_hostname = False

    def state(self, last: Told | None = None, seconds: float = REQUEST_SECONDS) -> Told:
        """The state; with ``last``, waits until phase or attempt differ from it. Raises Unreachable."""
        path = STATE_PATH
        if last is not None:
            path += f"?wait={seconds:g}&phase={last.phase.value}&attempt={last.attempt}"
        connection = http.client.HTTPSConnection(
            self._proxy.hostname or "", self._proxy.port, timeout=seconds + REQUEST_SECONDS, context=self._context
        )
        connection.set_tunnel(self._address, self._port, self._proxy_headers)
        try:
            status, body = get(connection, path)
        except OSError as error:
            raise Unreachable(f"rank 0: {error!r}") from error
        finally:
            connection.close()
        if status != 200:
            raise Unreachable(f"rank 0 returns {status}")
        return Told.read(body)


@dataclass
class Eye:
    """Samples a deployment continuously: its endpoint, and whether pods of two epochs of one group ever exist at once."""

    api: Api
    namespace: str
    name: str
    endpoint: str = ""
    status: Json = field(default_factory=dict)
    mixtures: set[str] = field(default_factory=set)
    samples: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "Eye":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread:
            self._thread.join(2 * REQUEST_SECONDS + 5)

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            with contextlib.suppress(Unreachable):
                self._sample()

    def _sample(self) -> None:
        path = f"/apis/thunderfleet.io/v1alpha1/namespaces/{self.namespace}/modeldeployments/{self.name}"
        found = self.api.get(path)
        if found:
            self.status = found.get("status", {})
            groups = self.status.get("groups") or [{}]
            self.endpoint = str(self.status.get("endpoint") or groups[0].get("endpoint") or self.endpoint)
        live: dict[str, dict[str, list[str]]] = {}
        for pod in self.api.items(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={MANAGED}"):
            metadata = pod["metadata"]
            if "deletionTimestamp" not in metadata:
                labels = metadata["labels"]
                epochs = live.setdefault(labels["thunderfleet.io/group"], {})
                epochs.setdefault(labels["thunderfleet.io/epoch"], []).append(metadata["name"])
        for group, epochs in live.items():
            if len(epochs) > 1:
                self.mixtures.add(f"group {group}: pods of several epochs at once: {epochs}")
        self.samples += 1


@dataclass
class Writes:
    """The rate at which our programs write to the API server, from its audit log."""

    log: Path
    _offset: int = 0

    def begin(self) -> None:
        """Forgets what was written before."""
        self._offset = self.log.stat().st_size

    def events(self) -> list[Json]:
        """The requests of our programs since ``begin`` or the last call."""
        if self.log.stat().st_size < self._offset:
            # The API server has rotated it.
            self._offset = 0
        found, self._offset = audit.read_from(self.log, self._offset)
        return found


def most_frequent(events: Sequence[Json]) -> str:
    """What our programs have written most often, by user, verb and resource."""
    ours = (event for event in events if event["user"].get("username", "").startswith(OURS))
    written = Counter(said.rpartition(" ")[0] for event in ours if (said := audit.write_of(event)) is not None)
    return ", ".join(f"{count} x {what.removeprefix('system:')}" for what, count in written.most_common(MOST_FREQUENT))


def per_second(events: Sequence[Json]) -> list[int]:
    """The number of writes by our programs in each second from the first event to the last.

    Less than SHORTEST_SECONDS count as that long: what the start or the deletion of a deployment writes at once is no rate.
    """
    seconds = [datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp() for event in events]
    counts = [0] * max(SHORTEST_SECONDS, int(max(seconds) - min(seconds)) + 1 if seconds else 0)
    for event, second in zip(events, seconds, strict=True):
        # A request that was not authenticated has no user.
        ours = event["user"].get("username", "").startswith(OURS)
        counts[int(second - min(seconds))] += ours and audit.write_of(event) is not None
    return counts


@dataclass
class Bystander:
    """A deployment that no fault is meant for. It must restart nothing unless its own Mac is hit."""

    deployment: Deployment
    eye: Eye

    @property
    def node(self) -> str:
        """Its only Mac."""
        return str(self.eye.status["groups"][0]["ranks"][0]["node"])

    def look(self) -> Json:
        """What stays the same while nothing restarts."""
        group = self.deployment.group()
        pods = [child for child in self.deployment.children() if child["kind"] == "Pod"]
        containers = {
            pod["metadata"]["uid"]: [
                (found.get("containerID"), found["restartCount"]) for found in pod["status"].get("containerStatuses", [])
            ]
            for pod in pods
        }
        return {"epoch": group.get("epoch"), "failures": group.get("lastFailure"), "containers": containers}
