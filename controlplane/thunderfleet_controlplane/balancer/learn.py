"""Reads the addresses of the API servers from the cluster, with the kubelet's rights, and stores them on disk."""

import asyncio
import contextlib
import logging
import os
from pathlib import Path

from kubernetes.aio.config.config_exception import ConfigException
from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_controlplane.balancer.disk import read, write
from thunderfleet_controlplane.balancer.proxy import Pool
from thunderfleet_controlplane.balancer.servers import CONFIG_MAP, SLICE, recorded_servers

log = logging.getLogger(__name__)

SECONDS = 30.0
RETRY_SECONDS = 3.0
REQUEST_SECONDS = 10.0


class Learner:
    """Keeps ``pool`` and the file ``path`` up to date with the cluster. ``server``: the URL of the balancer itself."""

    def __init__(self, pool: Pool, path: Path, identity: Path, server: str, port: int) -> None:
        self._pool, self._path, self._identity, self._server, self._port = pool, path, identity, server, port
        self._stamp: tuple[int, int] | None = None

    def look(self) -> None:
        """Load the list on disk if a command has changed it."""
        with contextlib.suppress(OSError):
            about = os.stat(self._path)
            if (stamp := (about.st_mtime_ns, about.st_ino)) != self._stamp:
                self._stamp = stamp
                # A damaged file is ignored.
                self._pool.use(read(self._path) or self._pool.servers)

    async def run(self) -> None:
        """Update the list until cancelled."""
        while True:
            learnt = await self._learn()
            # In short steps, so that a change of the list on disk is used soon.
            for _ in range(round(SECONDS / RETRY_SECONDS) if learnt else 1):
                self.look()
                await asyncio.sleep(RETRY_SECONDS)

    async def _learn(self) -> bool:
        client = self._identity / "client.pem"
        if not client.exists():
            return False
        try:
            async with Kube.with_files(self._server, self._identity / "ca.crt", certificate=client, key=client) as kube:
                found = recorded_servers(await _get(kube, CONFIG_MAP), await _get(kube, SLICE), self._port)
        except (ApiError, OSError, ValueError, ConfigException) as error:
            log.debug("cannot read the addresses of the API servers: %s", error)
            return False
        self.look()
        if found and found != self._pool.servers:
            log.info("the API servers are %s", ", ".join(map(str, found)))
            await asyncio.to_thread(write, self._path, found)
            self.look()
        return bool(found)


async def _get(kube: Kube, path: str) -> dict[str, object] | None:
    try:
        return await kube.request("GET", path, seconds=REQUEST_SECONDS)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
