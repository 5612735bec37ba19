"""The life of one cluster: start, commands, end."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys

from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.supervisor.commands import Commands
from thunderfleet_localcluster.supervisor.local_cluster import LocalCluster
from thunderfleet_localcluster.supervisor.report import Report
from thunderfleet_localcluster.supervisor.spec import Spec
from thunderfleet_localcluster.supervisor.startup import start

log = logging.getLogger(__name__)


def run(folder: ClusterFolder, spec: Spec, listeners: tuple[socket.socket, socket.socket]) -> int:
    """Run a cluster until it is stopped. Exit code: 0 if it ended normally, 1 if it could not start."""
    return asyncio.run(_run(folder, spec, listeners))


async def _run(folder: ClusterFolder, spec: Spec, listeners: tuple[socket.socket, socket.socket]) -> int:
    report, stop = Report(), asyncio.Event()
    cluster: LocalCluster | None = None
    code = 0
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    try:
        async with report.step("network and certificates"):
            cluster = LocalCluster(folder, spec, listeners)
            await cluster.open_network()
        await _live(cluster, report, stop)
    except LocalClusterError as error:
        log.error("%s", error)
        report.write(state="failed", error=str(error))
        code = 1
    except Exception as error:
        log.exception("the supervisor failed")
        report.write(state="failed", error=f"{type(error).__name__}: {error}; see {folder.log('supervisor')}")
        code = 1
    if cluster is not None:
        await cluster.take_down()
    return code


async def _live(cluster: LocalCluster, report: Report, stop: asyncio.Event) -> None:
    """Start the cluster and serve commands until ``stop`` is set: by ``down``, a signal, or the end of the lifeline."""
    server = await Commands(cluster, stop).serve()
    lifeline = asyncio.create_task(_lifeline(report, stop))
    stopped, starting = asyncio.create_task(stop.wait()), asyncio.create_task(start(cluster, report))
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
        report.write(state="ready", cluster=cluster.describe())
        await stopped
    else:
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError, LocalClusterError):
            await starting
    lifeline.cancel()
    server.close()


async def _lifeline(report: Report, stop: asyncio.Event) -> None:
    """Read the lifeline (standard input): its end stops the cluster, unless ``detach`` came before."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        if line.strip() == b"detach":
            report.close()
            return
    log.info("the process that started this cluster has ended")
    stop.set()
