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
from thunderfleet_controlplane.balancer.servers import ApiServer, several
from thunderfleet_controlplane.components import server_url
from thunderfleet_controlplane.daemons.plan import API_PORT
from thunderfleet_controlplane.install.mac.logs import bound

LOG_SECONDS = 600.0
CALM_SECONDS = 30.0
"""How long it waits at most before it imports what checks and learns API servers; the list on disk is that of the last run."""
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
        with collector.paused():
            authorities.import_aiohttp()
            from thunderfleet_controlplane.balancer.health import Health
            from thunderfleet_controlplane.balancer.learn import Learner
        tasks.create_task(Health(pool, identity).run())
        tasks.create_task(Learner(pool, servers, identity, server_url(listen.host, listen.port), API_PORT).run())


async def until_useful(pool: Pool, servers: Path) -> None:
    """Waits until there are several API servers and one accepts connections, for a limited time.

    While a Mac boots, everything starts at once, and with one API server there is nothing to choose. ``servers``: the list on
    disk, which may change.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CALM_SECONDS):
            while not (several(pool.servers) and any(await asyncio.gather(*map(accepts, pool.every)))):
                await asyncio.sleep(LOOK_SECONDS)
                pool.use(disk.read(servers) or pool.servers)


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
    try:
        asyncio.run(run(given.listen, given.servers, given.identity, given.local, given.log))
    except asyncio.CancelledError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
