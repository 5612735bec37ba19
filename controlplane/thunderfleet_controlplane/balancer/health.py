"""Checks whether every API server is ready, over a connection that stays open."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import aiohttp

from thunderfleet_controlplane.balancer.proxy import Pool
from thunderfleet_controlplane.balancer.servers import ApiServer, is_address

SECONDS = 3.0
ANSWER_SECONDS = 4.0
NAME_PERIODS = 5
"""Names are checked less often: they are needed only after addresses have changed, and each look-up is a multicast."""
FAILURES = 2
"""Consecutive failures after which an API server counts as failed, and its connections are closed."""


class Health:
    """Checks the API servers of ``pool``. ``identity``: the folder of the kubelet's certificate, which may be missing yet."""

    def __init__(self, pool: Pool, identity: Path, seconds: float = SECONDS) -> None:
        self._pool = pool
        self._identity = identity
        self._seconds = seconds
        self._checks: dict[ApiServer, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        try:
            while True:
                wanted = set(self._pool.every)
                for server in self._checks.keys() - wanted:
                    self._checks.pop(server).cancel()
                for server in wanted - self._checks.keys():
                    self._checks[server] = asyncio.create_task(self._follow(server))
                await asyncio.sleep(self._seconds)
        finally:
            for task in self._checks.values():
                task.cancel()
            await asyncio.gather(*self._checks.values(), return_exceptions=True)

    async def _follow(self, server: ApiServer) -> None:
        failures = 0
        while True:
            used = _stamp(self._identity)
            timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
            # A name may get another address at any time.
            connector = aiohttp.TCPConnector(limit=1, use_dns_cache=False)
            context = _context(self._identity)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                # Checks until the kubelet has another certificate.
                while used == _stamp(self._identity):
                    works = await (accepts(server) if context is None else _is_ready(session, server, context))
                    failures = 0 if works else failures + 1
                    self._report(server, failures)
                    await asyncio.sleep(self._seconds * (1 if is_address(server.host) else NAME_PERIODS))

    def _report(self, server: ApiServer, failures: int) -> None:
        if failures in (0, FAILURES):
            self._pool.report(server, works=not failures)
        if failures == FAILURES:
            self._pool.cut(server)


def _stamp(identity: Path) -> tuple[int, int] | None:
    """Changes with the files of the identity; None if they are not there."""
    try:
        return (identity / "ca.crt").stat().st_mtime_ns, (identity / "client.pem").stat().st_mtime_ns
    except OSError:
        return None


def _context(identity: Path) -> ssl.SSLContext | None:
    """A client with the kubelet's certificate; None if this Mac has not joined yet."""
    try:
        context = ssl.create_default_context(cafile=str(identity / "ca.crt"))
        context.load_cert_chain(identity / "client.pem")
    except (OSError, ValueError):
        return None
    return context


async def _is_ready(session: aiohttp.ClientSession, server: ApiServer, context: ssl.SSLContext) -> bool:
    try:
        async with session.get(f"https://{server}/readyz", ssl=context) as answer:
            await answer.read()
            # Even an answer about missing rights shows that the API server works.
            return answer.status in (200, 401, 403)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return False


async def accepts(server: ApiServer) -> bool:
    """Whether the API server accepts a connection."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(server.host, server.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
