"""The node's certificates in use: renewed in time, and replaced everywhere without a restart."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_lib.csr.names import CLIENT_SIGNER, SERVING_SIGNER
from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_kubelet.answers import Answers
from thunderfleet_kubelet.bootstrap.certificates import (
    CertificateError,
    Pair,
    keep_read,
    obtain,
    read_pair,
    usable,
)
from thunderfleet_kubelet.bootstrap.errors import JoinError, join_again
from thunderfleet_kubelet.bootstrap.identity import NodeIdentity
from thunderfleet_kubelet.bootstrap.renewer import Renewer

log = logging.getLogger(__name__)

CLIENT_WAIT_SECONDS = 300.0
# An administrator approves these requests; after this time, a new request is sent.
SERVING_WAIT_SECONDS = 900.0
# The longest time that a watch with the old credentials keeps running.
RETIRE_SECONDS = 330.0


class Credentials:
    """The node's client certificate with its connection to the API server, and its server's certificate.

    ``certificate_seconds``: the lifetime to request. ``addresses``: the Node's. ``registered``: waits until the Node
    exists. ``client_changed`` and ``serving_changed`` start using a new certificate. ``expires`` gets a certificate's name and
    the time of its end as a Unix timestamp. ``report`` gets the error of a failed renewal, and None when a later one succeeds.
    Raises JoinError if there is no client certificate.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        certificate_seconds: int,
        *,
        addresses: Callable[[], tuple[str, ...]],
        registered: Callable[[], Awaitable[object]],
        client_changed: Callable[[Kube], None],
        serving_changed: Callable[[], None],
        expires: Callable[[str, float], None],
        report: Callable[[str | None], None],
    ) -> None:
        self.identity = identity
        self._certificate_seconds = certificate_seconds
        self._addresses = addresses
        self._registered = registered
        self._client_changed = client_changed
        self._serving_changed = serving_changed
        self._expires = expires
        client = read_pair(identity.client)
        if client is None:
            raise JoinError(f"{identity.client} not found; {join_again(identity.node_name)}")
        self._kube = identity.kube()
        self._retired: list[Kube] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._keeping = asyncio.Lock()
        serving = _damaged_is_none(identity.serving)
        if serving is not None and not usable(serving, identity.node_name, datetime.now(UTC), addresses()):
            serving = None
        self.can_serve = asyncio.Event()
        """Set once the server has a certificate."""
        self.client = Renewer("client", identity.client, self.request_client, self._use_client, report, client)
        self.serving = Renewer("serving", identity.serving, self._request_serving, self._renewed_serving, report, serving)

    def kube(self) -> Kube:
        """The connection to the API server with the current certificate."""
        return self._kube

    def api_counts(self) -> tuple[int, int]:
        """Number of requests and of writes since the start, over all connections."""
        clients = [*self._retired, self._kube]
        return sum(one.requests for one in clients), sum(one.writes for one in clients)

    async def run(self) -> None:
        """Starts with the certificates of an earlier process, and renews them until cancelled."""
        if self.client.pair is not None:
            self._expires("client", _end(self.client.pair))
        if self.serving.pair is not None:
            await self._use_serving(self.serving.pair)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.client.run())
            tasks.create_task(self.serving.run())

    async def close(self) -> None:
        """Closes all connections."""
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._kube.close()

    async def request_client(self) -> Pair:
        """A new client certificate. Raises CertificateError and ApiError."""
        name = self.identity.node_name
        try:
            return await obtain(self._kube, name, CLIENT_SIGNER, self._certificate_seconds, limit=CLIENT_WAIT_SECONDS)
        except ApiError as error:
            if error.status == 401:
                # A certificate that expired, for example while the Mac slept, cannot be renewed.
                raise CertificateError(
                    "the API server rejects the node's certificate (it has expired, or another cluster issued it); stop the "
                    f"kubelet and {join_again(name)}"
                ) from None
            raise

    async def _use_client(self, pair: Pair) -> None:
        old, self._kube = self._kube, self.identity.kube()
        self._retired.append(old)
        self._client_changed(self._kube)
        self._expires("client", _end(pair))
        task = asyncio.create_task(_close_later(old))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        await self._keep_read()

    async def _request_serving(self) -> Pair:
        # Approvers compare the request with the Node's addresses, so the Node must exist first.
        await self._registered()
        return await obtain(
            self._kube,
            self.identity.node_name,
            SERVING_SIGNER,
            self._certificate_seconds,
            addresses=self._addresses(),
            limit=SERVING_WAIT_SECONDS,
        )

    async def _renewed_serving(self, pair: Pair) -> None:
        await self._use_serving(pair)
        await self._keep_read()

    async def _keep_read(self) -> None:
        """Keeps what the new certificate says: a kubelet that starts while its Mac boots need not read it."""
        files = (self.identity.client, self.identity.serving)
        try:
            async with self._keeping:
                await asyncio.to_thread(keep_read, files, Answers(self.identity.answers))
        except Exception as error:
            log.warning("%s: cannot keep what certificates say (%r); the next start reads them", self.identity.answers, error)

    async def _use_serving(self, pair: Pair) -> None:
        self._serving_changed()
        self._expires("serving", _end(pair))
        self.can_serve.set()


def _damaged_is_none(file: Path) -> Pair | None:
    """The pair in ``file``; None if it is damaged, since a node can request another certificate for its server."""
    try:
        return read_pair(file)
    except CertificateError:
        log.warning("%s is damaged; requesting another certificate", file)
        return None


def _end(pair: Pair) -> float:
    return pair.facts.ends.timestamp()


async def _close_later(kube: Kube) -> None:
    try:
        await asyncio.sleep(RETIRE_SECONDS)
    finally:
        await kube.close()
