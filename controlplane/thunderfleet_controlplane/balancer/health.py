"""Checks whether every API server is ready, over a connection that stays open."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
from thunderfleet_lib.net import redirects

from thunderfleet_controlplane.balancer.proxy import ANSWER_SECONDS, Pool, accepts
from thunderfleet_controlplane.balancer.servers import ApiServer, is_address

SECONDS = 3.0
NAME_PERIODS = 5
"""Names are checked less often: they are needed only after addresses have changed, and each look-up is a multicast."""
FAILURES = 2
"""Consecutive failures after which an API server counts as failed. Its connections are closed, unless it still accepts new
ones, and no other API server has answered since: then it is slow, and all clients at once would make it slower."""


class Health:
    """Checks the API servers of ``pool``. ``identity``: the folder of the kubelet's certificate, which may be missing yet."""

    def __init__(self, pool: Pool, identity: Path, seconds: float = SECONDS) -> None:
        self._pool = pool
        self._identity = identity
        self._seconds = seconds
        self._checks: dict[ApiServer, asyncio.Task[None]] = {}
        self._worked: dict[ApiServer, float] = {}
        """When each API server last answered, by the loop's clock."""

    async def run(self) -> None:
        """Check until cancelled."""
        try:
            while True:
                wanted = set(self._pool.every)
                for server in self._checks.keys() - wanted:
                    self._checks.pop(server).cancel()
                    self._worked.pop(server, None)
                for server in wanted - self._checks.keys():
                    self._checks[server] = asyncio.create_task(self._follow(server))
                await asyncio.sleep(self._seconds)
        finally:
            for task in self._checks.values():
                task.cancel()
            await asyncio.gather(*self._checks.values(), return_exceptions=True)

    async def _follow(self, server: ApiServer) -> None:
        failures, since = 0, 0.0
        while True:
            used = _stamp(self._identity)
            timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
            # A name may get another address at any time.
            connector = aiohttp.TCPConnector(limit=1, use_dns_cache=False)
            context = _context(self._identity)
            traces = [redirects.refused()]
            async with aiohttp.ClientSession(connector=connector, timeout=timeout, trace_configs=traces) as session:
                # Checks until the kubelet has another certificate.
                while used == _stamp(self._identity):
                    works = await (accepts(server) if context is None else _is_ready(session, server, context))
                    now = asyncio.get_running_loop().time()
                    failures, since = (0, now) if works else (failures + 1, since if failures else now)
                    await self._report(server, failures, since)
                    await asyncio.sleep(self._seconds * (1 if is_address(server.host) else NAME_PERIODS))

    async def _report(self, server: ApiServer, failures: int, since: float) -> None:
        """``since``: the time of the first of the ``failures``, or of a success."""
        if not failures:
            self._worked[server] = since
        if failures in (0, FAILURES):
            self._pool.report(server, works=not failures)
        if failures >= FAILURES and (self._another_works(server, since) or not await accepts(server)):
            self._pool.cut(server)

    def _another_works(self, server: ApiServer, since: float) -> bool:
        # One API server can be in the list with several addresses, which fail together.
        return any(when > since for other, when in self._worked.items() if other != server)


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
