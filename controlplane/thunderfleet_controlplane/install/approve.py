"""The daemon that approves certificates of kubelets that join, and serving certificates until the operator is installed.

It also limits the size of the logs of the control plane's daemons.
"""

import argparse
import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from thunderfleet_lib import collector
from thunderfleet_lib.net import authorities

from thunderfleet_controlplane.install.mac.logs import bound
from thunderfleet_controlplane.pki_files import PkiFiles

LOG_SECONDS = 600.0
LISTEN_SECONDS = 60.0
"""How long it waits at most before it imports the rest."""
LOOK_SECONDS = 0.5


async def run(server: str, pki: PkiFiles, address: str, logs: Sequence[Path]) -> None:
    """Approve until SIGTERM. ``address``: the API server's address for other machines; ``logs``: files to limit."""
    with collector.paused():
        authorities.import_aiohttp()
        from thunderfleet_lib.csr.rules import plain_address
        from thunderfleet_lib.kube import Kube

        from thunderfleet_controlplane.approver import Approver

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    own = pki.pair("approver")
    kube = Kube.with_files(server, pki.ca, certificate=own.certificate, key=own.key)
    async with kube, asyncio.TaskGroup() as tasks:
        tasks.create_task(Approver(kube, frozenset({plain_address(address)})).run())
        tasks.create_task(_bound(logs))


def until_listening(server: str) -> None:
    """Waits until the API server accepts connections, for a limited time.

    While a Mac boots, everything starts at once, and importing the rest takes a second of processor time.
    """
    at = urlsplit(server)
    deadline = time.monotonic() + LISTEN_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((at.hostname or "", at.port or 443), timeout=LOOK_SECONDS).close()
        except OSError:
            time.sleep(LOOK_SECONDS)
        else:
            return


async def _bound(logs: Sequence[Path]) -> None:
    while True:
        await asyncio.to_thread(bound, logs)
        await asyncio.sleep(LOG_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; launchd starts it."""
    parser = argparse.ArgumentParser(prog="thunderfleet-approver", description="Approve certificates of kubelets that join.")
    parser.add_argument("--server", required=True, help="URL of the API server on this Mac")
    parser.add_argument("--pki", type=Path, required=True, help="folder of the control plane's certificates")
    parser.add_argument("--address", required=True, help="address of the API server for other machines")
    parser.add_argument("--log", type=Path, action="append", default=[], help="log file whose size to limit; may be repeated")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    until_listening(given.server)
    try:
        asyncio.run(run(given.server, PkiFiles(given.pki), given.address, given.log))
    except asyncio.CancelledError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
