"""The programs of the control plane: start, stop, watch, and wait until the API server is usable."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from thunderfleet_controlplane.approver import Approver
from thunderfleet_controlplane.components import Endpoints, joining_objects
from thunderfleet_controlplane.pki_files import ClusterPki
from thunderfleet_controlplane.setup import prepare
from thunderfleet_lib.host.trees import tail
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_lib.net import tls

from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.machines.children import Child, Children
from thunderfleet_localcluster.supervisor.spec import Spec
from thunderfleet_localcluster.supervisor.state import ComponentStatus

log = logging.getLogger(__name__)

READY_SECONDS = 120
POLL_SECONDS = 0.1
STOP_SECONDS = 10
ACTIONS = ("off", "on", "freeze", "thaw")
CREATE_ATTEMPTS = 50
CREATE_RETRY_SECONDS = 0.2


class ControlPlane:
    """etcd, API server, controller manager and scheduler of one cluster."""

    def __init__(self, folder: ClusterFolder, spec: Spec, children: Children, at: Endpoints) -> None:
        self.folder, self.spec, self.children, self.at = folder, spec, children, at
        self.starting = True
        self._prepared = prepare(
            spec.name,
            folder.control_plane,
            Path(spec.assets),
            at,
            ["127.0.0.1", "localhost", at.api],
            folder.log("audit") if spec.audit else None,
        )
        self._components: dict[str, Child] = {}
        self._stopped: set[str] = set()
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._kube: Kube | None = None
        children.on_end = self._ended

    @property
    def pki(self) -> ClusterPki:
        """The certificates."""
        return self._prepared.pki

    @property
    def kube(self) -> Kube:
        """The administrator's connection to the API server."""
        if self._kube is None:
            raise LocalClusterError("the API server has not been started yet")
        return self._kube

    def write_kubeconfigs(self, outer: str) -> None:
        """Write the administrator's kubeconfigs: for the user's shell (server ``outer``) and for the cluster's network."""
        for path, server in ((self.folder.kubeconfig, outer), (self.folder.inner_kubeconfig, self.at.server)):
            tls.write_private(path, self._prepared.admin_kubeconfig(self.spec.name, server).encode())

    # -- programs ----------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a program."""
        program = self._prepared.programs[name]
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder.control_plane), **program.env}
        self._components[name] = self.children.start(name, program.argv, env=env, log=self.folder.log(name))

    async def switch(self, name: str, action: str) -> None:
        """Kill (off), start (on), stop (freeze) or continue (thaw) a program. Raises LocalClusterError."""
        child = self._components.get(name)
        if child is None:
            raise LocalClusterError(f"unknown component {name!r}; components: {', '.join(self._components)}", usage=True)
        if action not in ACTIONS:
            raise LocalClusterError(f"unknown action {action!r}; allowed: {', '.join(ACTIONS)}", usage=True)
        if action == "on":
            if child.running:
                raise LocalClusterError(f"{name} is already running")
            self._stopped.discard(name)
            self.start(name)
        elif action == "off":
            self._stopped.add(name)
            child.kill(signal.SIGKILL)
            async with asyncio.timeout(STOP_SECONDS):
                await child.ended.wait()
        elif not child.running:
            raise LocalClusterError(f"{name} is not running")
        else:
            child.kill(signal.SIGSTOP if action == "freeze" else signal.SIGCONT)

    def status(self) -> list[ComponentStatus]:
        """Every program, with the last lines of its log if it ended by itself."""
        found = []
        for name, child in self._components.items():
            stopped = name in self._stopped
            last = "" if child.running or stopped or child.log is None else tail(child.log)
            found.append(ComponentStatus(name, child.pid if child.running else None, child.code, stopped, str(child.log), last))
        return found

    def _ended(self, child: Child) -> None:
        if self._components.get(child.name) is not child or child.name in self._stopped:
            return
        text = child.describe_end()
        log.error("%s", text)
        if self.starting and not self._failure.done():
            self._failure.set_result(text)

    async def or_failure(self, work: Awaitable[None]) -> None:
        """Wait for ``work``. Raises LocalClusterError as soon as a program ends while the cluster starts."""
        task = asyncio.ensure_future(work)
        waited: set[asyncio.Future[Any]] = {task, self._failure}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                raise LocalClusterError(self._failure.result())
            await task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    # -- API server --------------------------------------------------------------------------------------------------------

    async def api_ready(self) -> None:
        """Wait until the API server is ready."""
        pair = self.pki.pair("admin")
        self._kube = Kube.with_files(self.at.server, self.pki.ca, certificate=pair.certificate, key=pair.key)

        async def problem() -> str:
            try:
                await self.kube.request("GET", "/readyz", seconds=5)
            except ApiError as error:
                return f"the API server is not ready: {error}"
            return ""

        await self._until_solved(problem, "kube-apiserver")

    async def default_account(self) -> None:
        """Wait until pods can be created in the namespace ``default``: they need its service account."""

        async def problem() -> str:
            account = await self.kube.get_or_none("/api/v1/namespaces/default/serviceaccounts/default")
            return "" if account else "the service account default/default does not exist"

        await self._until_solved(problem, "kube-controller-manager")

    async def _until_solved(self, problem: Callable[[], Awaitable[str]], program: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while text := await problem():
            if time.monotonic() > deadline:
                raise LocalClusterError(f"after {READY_SECONDS} s {text}; see {self.folder.log(program)}")
            await asyncio.sleep(POLL_SECONDS)

    async def make_joinable(self) -> None:
        """Create the objects that joining needs, and start to approve certificates of kubelets."""
        for path, body in joining_objects(self.spec.name, self.at.server, self.pki.ca_pem):
            await self._create(path, body)
        self._background(self._approve(), "the approver of certificates")

    async def _create(self, path: str, body: dict[str, Any]) -> None:
        """Create an object. Its namespace or role may appear shortly after the API server is ready."""
        for attempt in range(CREATE_ATTEMPTS):
            try:
                await self.kube.create(path, body)
                return
            except ApiError as error:
                if error.status == 409:
                    return
                final = error.status not in (0, 403, 404) and not error.transient
                if final or attempt == CREATE_ATTEMPTS - 1:
                    raise LocalClusterError(f"cannot create {body['kind']} {body['metadata']['name']}: {error}") from error
            await asyncio.sleep(CREATE_RETRY_SECONDS)

    async def _approve(self) -> None:
        pair = self.pki.pair("approver")
        async with Kube.with_files(self.at.server, self.pki.ca, certificate=pair.certificate, key=pair.key) as kube:
            await Approver(kube, frozenset({self.at.api})).run()

    def _background(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            self._tasks.discard(finished)
            if not finished.cancelled() and finished.exception():
                log.error("%s failed", what, exc_info=finished.exception())

        task.add_done_callback(done)

    async def close(self) -> None:
        """End background tasks and the connection; the programs end with the supervisor."""
        self.children.on_end = None
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._kube is not None:
            await self._kube.close()
