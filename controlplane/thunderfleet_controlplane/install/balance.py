"""The daemon that forwards connections of this Mac to an API server that works. It also limits the size of its log."""

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from thunderfleet_lib import collector
from thunderfleet_lib.host.descriptors import allow_descriptors
from thunderfleet_lib.net import authorities

from thunderfleet_controlplane.balancer import disk
from thunderfleet_controlplane.balancer.proxy import Balancer, Pool, accepts
from thunderfleet_controlplane.balancer.servers import ApiServer, is_address, several
from thunderfleet_controlplane.components import server_url
from thunderfleet_controlplane.daemons.plan import API_PORT
from thunderfleet_controlplane.install.mac.logs import bound

LOG_SECONDS = 600.0
CALM_SECONDS = 30.0
"""How long it waits at most before it checks API servers and learns their addresses. Until then, it uses the list on disk."""
LOOK_SECONDS = 0.5
BACKLOG = 128


async def run(listen: ApiServer, servers: Path, identity: Path, local: ApiServer | None, log: Path) -> None:
    """Forward connections until SIGTERM. ``servers``: the list on disk; ``identity``: folder of the kubelet's identity."""
    allow_descriptors()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    pool = Pool(local)
    pool.use(disk.read(servers))
    listening = socket.create_server((listen.host, listen.port), backlog=BACKLOG)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Balancer(pool).serve(listening))
        tasks.create_task(_bound(log))
        await until_useful(pool, servers)
        # In a thread, because clients are connected.
        await asyncio.to_thread(_import_checks)
        from thunderfleet_controlplane.balancer.health import Health
        from thunderfleet_controlplane.balancer.learn import Learner

        tasks.create_task(Health(pool, identity).run())
        tasks.create_task(Learner(pool, servers, identity, server_url(listen.host, listen.port), API_PORT).run())


async def until_useful(pool: Pool, servers: Path) -> None:
    """Waits until several addresses are known and one accepts connections, for a limited time.

    While a Mac boots, everything starts at once, and with one address there is little to choose: that another machine has it
    now is noticed later. ``servers``: the list on disk, which may change.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CALM_SECONDS):
            while not (several(pool.servers) and await _one_accepts(pool.every)):
                await asyncio.sleep(LOOK_SECONDS)
                pool.use(disk.read(servers) or pool.servers)


async def _one_accepts(servers: Sequence[ApiServer]) -> bool:
    # Without names, because each look-up is a multicast.
    checks = [asyncio.create_task(accepts(one)) for one in servers if is_address(one.host)]
    try:
        for check in asyncio.as_completed(checks):
            if await check:
                return True
        return False
    finally:
        for one in checks:
            one.cancel()
        await asyncio.gather(*checks, return_exceptions=True)


def _import_checks() -> None:
    with collector.paused():
        from thunderfleet_controlplane.balancer import health, learn  # noqa: F401


async def _bound(log: Path) -> None:
    while True:
        await asyncio.to_thread(bound, [log])
        await asyncio.sleep(LOG_SECONDS)


def _at(text: str) -> ApiServer:
    parts = urlsplit(text if "://" in text else f"https://{text}")
    if not parts.hostname or parts.port is None:
        raise argparse.ArgumentTypeError(f"{text} is not HOST:PORT")
    return ApiServer(parts.hostname, parts.port)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; launchd starts it."""
    parser = argparse.ArgumentParser(
        prog="thunderfleet-balancer", description="Forward connections of this Mac to an API server that works."
    )
    parser.add_argument("--listen", type=_at, required=True, help="address and port to listen on")
    parser.add_argument("--servers", type=Path, required=True, help="list of API servers, which is kept up to date")
    parser.add_argument("--identity", type=Path, required=True, help="folder of the kubelet's certificate")
    parser.add_argument("--local", type=_at, help="URL of the API server on this Mac")
    parser.add_argument("--log", type=Path, required=True, help="log file whose size to limit")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # It imports aiohttp late, when it has threads.
    authorities.never_read()
    try:
        asyncio.run(run(given.listen, given.servers, given.identity, given.local, given.log))
    except asyncio.CancelledError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
