"""Commands from ``thunderfleet`` and from tests, as JSON lines on the UNIX socket in the cluster's folder."""

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from thunderfleet_lib.kube import ApiError

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.machines.machine import MachineProcess
from thunderfleet_localcluster.supervisor import state
from thunderfleet_localcluster.supervisor.changes import decide
from thunderfleet_localcluster.supervisor.local_cluster import LocalCluster

log = logging.getLogger(__name__)

LINE_LIMIT = 1 << 20
RUN_SECONDS = 30.0
WHILE_STARTING = ("status", "down")

Json = dict[str, Any]


class Commands:
    """Executes commands; ``down`` sets ``stop``."""

    def __init__(self, cluster: LocalCluster, stop: asyncio.Event) -> None:
        self.cluster, self.stop = cluster, stop
        self._commands: Mapping[str, Callable[[Json], Awaitable[Json]]] = {
            "status": self._status,
            "down": self._down,
            "token": self._token,
            "machine": self._machine,
            "component": self._component,
            "run": self._run,
            "change": self._change,
        }
        self._machine_actions: Mapping[str, Callable[[MachineProcess], Awaitable[None]]] = {
            "kill-kubelet": lambda machine: machine.kill_kubelet(signal.SIGKILL),
            "stop-kubelet": lambda machine: machine.kill_kubelet(signal.SIGTERM),
            "freeze-kubelet": lambda machine: machine.signal_kubelet(signal.SIGSTOP),
            "thaw-kubelet": lambda machine: machine.signal_kubelet(signal.SIGCONT),
            "start-kubelet": lambda machine: cluster.joining.start_kubelet(machine),
            "off": cluster.pool.switch_off,
            "on": self._switch_on,
        }

    async def serve(self) -> asyncio.Server:
        """Listen on the socket. The working directory is the cluster's folder: socket paths are limited to about 100 bytes."""
        socket = self.cluster.folder.socket
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
        old = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(self._handle, path=socket.name, limit=LINE_LIMIT)
        finally:
            os.umask(old)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            line = await reader.readline()
            try:
                answer = await self.carry_out(json.loads(line))
            except (LocalClusterError, ApiError) as error:
                answer = {"error": str(error), "usage": getattr(error, "usage", False)}
            except Exception as error:
                log.exception("command failed")
                answer = {"error": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
            writer.close()

    async def carry_out(self, command: Json) -> Json:
        """Execute one command. Raises LocalClusterError or ApiError."""
        name = str(command.get("do"))
        if name not in self._commands:
            raise LocalClusterError(f"unknown command {name!r}; allowed: {', '.join(self._commands)}")
        if self.cluster.starting and name not in WHILE_STARTING:
            raise LocalClusterError(f"cluster {self.cluster.spec.name} is still starting; try again when it is up")
        return await self._commands[name](command)

    async def _status(self, _: Json) -> Json:
        cluster = self.cluster
        nodes: list[Json] = []
        with contextlib.suppress(ApiError, LocalClusterError):
            nodes = await cluster.nodes()
        described = {} if cluster.starting else cluster.describe()
        return state.status(described, cluster.starting, cluster.components(), cluster.pool.status(), nodes)

    async def _down(self, _: Json) -> Json:
        self.stop.set()
        return {}

    async def _token(self, command: Json) -> Json:
        node = str(command["node"]) if command.get("node") is not None else None
        description = str(command.get("description") or "by thunderfleet local token")
        token = await self.cluster.joining.make_token(description, node)
        return {"token": token, "caHash": self.cluster.control_plane.pki.ca_hash}

    async def _machine(self, command: Json) -> Json:
        machine, action = self.cluster.pool.named(str(command.get("name"))), str(command.get("action"))
        if action not in self._machine_actions:
            raise LocalClusterError(f"unknown action {action!r}; allowed: {', '.join(self._machine_actions)}", usage=True)
        await self._machine_actions[action](machine)
        return {}

    async def _switch_on(self, machine: MachineProcess) -> None:
        await self.cluster.pool.switch_on(machine)
        if self.cluster.spec.kubelet is not None:
            await self.cluster.joining.start_kubelet(machine)

    async def _component(self, command: Json) -> Json:
        await self.cluster.control_plane.switch(str(command.get("name")), str(command.get("action")))
        return {}

    async def _run(self, command: Json) -> Json:
        machine = self.cluster.pool.named(str(command.get("name")))
        argv = [str(part) for part in command["argv"]]
        ran = await machine.run(argv, str(command.get("input") or ""), float(command.get("seconds") or RUN_SECONDS))
        return {"code": ran.code, "stdout": ran.stdout, "stderr": ran.stderr}

    async def _change(self, command: Json) -> Json:
        pool = self.cluster.pool
        await pool.apply(decide(command, pool.situation))
        # Cables may have moved.
        self.cluster.write_state()
        return {}
