"""Requests to etcd about its members, through its JSON gateway."""

import http.client
import json
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thunderfleet_controlplane.daemons.plan import ETCD_CLIENT, LOCAL
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.peers.quorum import Member, parse
from thunderfleet_controlplane.pki_files import PkiFiles

ANSWER_SECONDS = 10.0
ALIVE_SECONDS = 5.0
ANSWER_BYTES = 1 << 20
ATTEMPTS, PAUSE_SECONDS = 5, 1.0


class EtcdError(InstallError):
    """etcd does not answer, or refuses; ``refused``: it has answered."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Etcd:
    """The etcds of a cluster. ``hosts``: their possible addresses; the first one that answers is used."""

    def __init__(self, pki: PkiFiles, hosts: Iterable[str] = (), port: int = ETCD_CLIENT) -> None:
        self._pki, self._port = pki, port
        self._hosts = tuple(dict.fromkeys((LOCAL, *hosts)))

    def members(self, *, consistent: bool = True) -> tuple[Member, ...]:
        """All members. Not ``consistent``: from this Mac's etcd alone, which works without the others. Raises EtcdError."""
        for attempt in range(ATTEMPTS):
            try:
                answer = self.call("/v3/cluster/member/list", {"linearizable": consistent}, None if consistent else (LOCAL,))
                break
            except EtcdError as error:
                # A member that joins or leaves causes this error.
                if "leader changed" not in str(error) or attempt == ATTEMPTS - 1:
                    raise
                time.sleep(PAUSE_SECONDS)
        try:
            return parse(answer)
        except ValueError as error:
            raise EtcdError(str(error)) from None

    def add_learner(self, url: str) -> None:
        """Add a member that has no vote until it has all data. Raises EtcdError."""
        self.call("/v3/cluster/member/add", {"peerURLs": [url], "isLearner": True})

    def promote(self, member: Member) -> None:
        """Give a learner a vote. Raises EtcdError, also while it does not have all data."""
        self.call("/v3/cluster/member/promote", {"ID": str(member.id)})

    def move(self, member: Member, url: str) -> None:
        """Change the address of a member. Raises EtcdError."""
        self.call("/v3/cluster/member/update", {"ID": str(member.id), "peerURLs": [url]})

    def remove(self, member: Member) -> None:
        """Remove a member; its etcd then exits. Raises EtcdError."""
        self.call("/v3/cluster/member/remove", {"ID": str(member.id)})

    def own_id(self) -> int:
        """The id of this Mac's member. Raises EtcdError."""
        header = self.call("/v3/maintenance/status", {}, (LOCAL,)).get("header") or {}
        return int(header.get("member_id") or 0)

    def alive(self, members: Iterable[Member]) -> frozenset[int]:
        """The ids of the members whose etcd answers, whether it has a leader or not."""
        found = set()
        for one in members:
            for host in one.hosts:
                try:
                    status, _ = self._ask(host, "GET", "/health?serializable=true", "", ALIVE_SECONDS)
                except (OSError, http.client.HTTPException):
                    continue
                if status == http.HTTPStatus.OK:
                    found.add(one.id)
                    break
        return frozenset(found)

    def call(self, path: str, body: Mapping[str, object], hosts: Sequence[str] | None = None) -> dict[str, Any]:
        """The answer of the first etcd that answers. Raises EtcdError with the error of the last one."""
        problem: EtcdError | None = None
        for host in hosts or self._hosts:
            try:
                status, text = self._ask(host, "POST", path, json.dumps(body), ANSWER_SECONDS)
                answer = json.loads(text)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = problem or EtcdError(f"etcd at {host} does not answer: {error}")
                continue
            if status == http.HTTPStatus.OK and isinstance(answer, dict):
                return answer
            said = answer.get("message") if isinstance(answer, dict) else None
            problem = EtcdError(f"etcd at {host}: {said or f'status {status}'}", refused=True)
        raise problem or EtcdError("no member of etcd is known")

    def _ask(self, host: str, method: str, path: str, body: str, seconds: float) -> tuple[int, bytes]:
        pair = self._pki.pair("etcd-client")
        context = ssl.create_default_context(cafile=str(self._pki.folder / "etcd-ca.crt"))
        context.load_cert_chain(pair.certificate, pair.key)
        connection = http.client.HTTPSConnection(host, self._port, timeout=seconds, context=context)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES)
        finally:
            connection.close()
