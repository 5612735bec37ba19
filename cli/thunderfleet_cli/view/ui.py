"""``ui``: serves the live page to browsers on this machine."""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import time
import webbrowser
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from aiohttp import web
from thunderfleet_localcluster.client.control import running
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_view.live.feed import Feed
from thunderfleet_view.live.meter import Meter
from thunderfleet_view.live.watch import Watch
from thunderfleet_view.web import guard
from thunderfleet_view.web.chat import Chat
from thunderfleet_view.web.server import Server
from thunderfleet_view.web.sessions import Sessions

from thunderfleet_cli.connection import Connection, connect
from thunderfleet_cli.view.page import QUIET, Page

ADDRESS: Final = "127.0.0.1"
CLUSTER_SECONDS: Final = 1.0
"""How soon a page ends after its local cluster."""


def show_page(arguments: argparse.Namespace) -> int:
    """``thunderfleet ui``. Raises LocalClusterError."""
    connection = connect(arguments.kubeconfig, arguments.context, arguments.namespace)
    # The page shows problems with the API server.
    logging.getLogger("thunderfleet_lib.kube").setLevel(logging.ERROR)
    try:
        asyncio.run(_until_interrupted(_serve(connection, arguments)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    return 0


async def _until_interrupted(serving: Coroutine[Any, Any, None]) -> None:
    """Ends ``serving`` on SIGTERM and SIGHUP as on Ctrl-C, also where Ctrl-C is ignored: in the background of a script."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    await serving


async def _serve(connection: Connection, arguments: argparse.Namespace) -> None:
    page, sessions, feed = Page(), Sessions(time.monotonic), Feed()
    async with await connection.kube() as kube:
        watch = Watch(kube, feed, arguments.namespace, leased=True)
        server = Server(watch, feed, sessions, Chat(connection.proxy))
        runner = web.AppRunner(
            server.app(), access_log=None, handle_signals=False, handler_cancellation=True, shutdown_timeout=0.5
        )
        await runner.setup()
        try:
            try:
                port = await server.listener.listen(runner, ADDRESS, arguments.port)
            except OSError as error:
                raise LocalClusterError(f"cannot listen on port {arguments.port} of {ADDRESS}: {error.strerror}") from error
            server.hosts = guard.loopback_hosts(port)

            def announce() -> None:
                # The part after # stays in the browser, which removes it from the address at once.
                address = f"http://{ADDRESS}:{port}/#{sessions.new_token()}"
                page.line(address)
                if arguments.open:
                    webbrowser.open(address)

            announce()
            if sys.stdin.isatty():
                page.line("open it within 10 minutes; it works once. Enter prints another address, Ctrl-C ends the page", QUIET)
            with _on_enter(announce):
                async with asyncio.TaskGroup() as tasks:
                    work = [tasks.create_task(one) for one in (watch.run(), Meter(kube, watch.fleet, feed).run())]
                    if arguments.while_running is not None:
                        await _end_of(ClusterFolder(arguments.while_running))
                        for task in work:
                            task.cancel()
        finally:
            await runner.cleanup()


async def _end_of(folder: ClusterFolder) -> None:
    """Waits until the local cluster in a folder does not run."""
    while True:
        await asyncio.sleep(CLUSTER_SECONDS)
        if not running(folder):
            return


@contextlib.contextmanager
def _on_enter(call: Callable[[], None]) -> Iterator[None]:
    """Calls ``call`` each time Enter is pressed on the terminal."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        if sys.stdin.readline():
            call()
        else:
            loop.remove_reader(sys.stdin)

    interactive = sys.stdin.isatty()
    if interactive:
        loop.add_reader(sys.stdin, read)
    try:
        yield
    finally:
        if interactive:
            loop.remove_reader(sys.stdin)
