"""The parent of everything in one cluster: one process whose end is the end of all the others.

``thunderfleet up`` starts it with a pipe as its standard input, the lifeline: when that ends before somebody said ``detach``,
whoever wanted the cluster is gone, and so is the cluster. Standard output carries progress as JSON lines, standard error is
its log. Afterwards orders come in by a UNIX socket in the cluster's folder.

In namespace mode the process that was started stays outside, holds nothing but the lock, and has the rest run as the first
process of a PID namespace: killed or crashed, the kernel takes processes, interfaces and mounts with it.
"""

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.machines.launchd import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    descendants,
    kill_all,
    libc_call,
    mount_own_proc,
)
from thunderfleet_localcluster.paths import ClusterFolder

if TYPE_CHECKING:
    from thunderfleet_lib.kube import Kube

    from thunderfleet_localcluster.controlplane.components import Endpoints, Program
    from thunderfleet_localcluster.controlplane.pki import ClusterPki
    from thunderfleet_localcluster.fleet.layout import CableEnd
    from thunderfleet_localcluster.machines.children import Child
    from thunderfleet_localcluster.machines.machine import Machine

log = logging.getLogger("thunderfleet.keeper")

READY_SECONDS = 120
NODES_SECONDS = 120
TOKEN_HOURS = 1
CLAIM_PORT = 6442
"""A keeper in loopback mode listens here on its block's last address: so blocks are claimed, and freed by the kernel."""


class Spec:
    """What to keep: written by ``thunderfleet up``, read once."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.name = str(data["name"])
        self.mode = str(data["mode"])
        self.reason = str(data.get("reason") or "")
        self.assets = Path(data["assets"])
        self.fleet = str(data["fleet"])
        self.fleet_file = str(data["fleetFile"])
        self.image_name: str | None = data.get("imageName")
        self.image_folder: str | None = data.get("imageFolder")
        self.image_lock: str | None = data.get("imageLock")
        self.kubelet: list[str] | None = data.get("kubelet")
        self.audit = bool(data.get("audit"))
        self.user = data.get("defaultUser")


class Reporter:
    """Progress as JSON lines on standard output, for as long as somebody reads it."""

    def __init__(self) -> None:
        self.open = True

    def say(self, **event: object) -> None:
        if self.open:
            try:
                os.write(1, json.dumps(event).encode() + b"\n")
            except OSError:
                self.open = False

    @contextlib.asynccontextmanager
    async def step(self, title: str) -> AsyncIterator[None]:
        """One step with its time; a failure inside it goes on up."""
        began = time.monotonic()
        self.say(step=title, state="start")
        yield
        seconds = time.monotonic() - began
        log.info("%s: %.1f s", title, seconds)
        self.say(step=title, state="done", seconds=round(seconds, 2))


def free_port(address: str) -> int:
    """A TCP port that nobody has on ``address`` right now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def claim_block() -> tuple[int, socket.socket]:
    """A free second octet of loopback addresses, and the socket that holds it. Raises LocalClusterError."""
    for block in range(64, 250):
        claim = socket.socket()
        try:
            claim.bind((f"127.{block}.255.254", CLAIM_PORT))
            claim.listen(1)
        except OSError:
            claim.close()
            continue
        return block, claim
    raise LocalClusterError("no loopback addresses are free for another cluster (127.64.0.0 to 127.249.0.0)")


class Keeper:
    """One cluster from its first process to its last."""

    def __init__(self, folder: ClusterFolder, spec: Spec, listeners: list[socket.socket], reporter: Reporter) -> None:
        from thunderfleet_localcluster.fleet.fault_state import Live
        from thunderfleet_localcluster.fleet.file import parse_fleet
        from thunderfleet_localcluster.fleet.layout import plan_layout
        from thunderfleet_localcluster.machines.children import Children
        from thunderfleet_localcluster.network.namespaces import can_bind, missing_aliases

        self.folder, self.spec, self.reporter = folder, spec, reporter
        self.listeners = listeners
        self.claim: socket.socket | None = None
        block = 64
        if spec.mode == "loopback":
            # Where every loopback address has to be made first (macOS) there is one block, and nothing to claim.
            block, self.claim = (block, None) if sys.platform == "darwin" else claim_block()
        self.fleet = parse_fleet(spec.fleet, spec.fleet_file)
        self.layout = plan_layout(self.fleet, "loopback" if spec.mode == "loopback" else "namespaces", block)
        if spec.mode == "loopback" and (lines := missing_aliases(self.layout, can_bind)):
            raise LocalClusterError("this machine lacks loopback addresses; these lines make them:\n" + "\n".join(lines))
        self.children = Children()
        self.children.on_end = self._ended
        self.components: dict[str, Child] = {}
        self.programs: dict[str, Program] = {}
        self.held: set[str] = set()
        """Components that were stopped by order: their end is no news."""
        self.machines: dict[str, Machine] = {}
        self.live = Live()
        """What has happened to cables, switches and commands since."""
        self.joined: set[str] = set()
        self.tokens: dict[str, str] = {}
        self.failure: asyncio.Future[str] | None = None
        self.starting = True
        self.stop = asyncio.Event()
        self.detached = False
        self.state: dict[str, Any] = {}
        self.pki: ClusterPki
        self.at: Endpoints
        self._kube: Kube | None = None
        self.tasks: set[asyncio.Task[Any]] = set()

    # -- starting ----------------------------------------------------------------------------------------------------------

    async def up(self) -> None:
        """Everything in order; returns when every Node is Ready. Raises LocalClusterError."""
        step = self.reporter.step
        self.failure = asyncio.get_running_loop().create_future()
        async with step("network and certificates"):
            self._make_folders()
            if self.layout.mode == "namespaces":
                from thunderfleet_localcluster.network.namespaces import ip_batch, lan_commands

                ip_batch(lan_commands(self.layout))
            self._make_pki()
            await self._listen()
        async with step("API server"):
            self._start_component(self.programs["etcd"])
            self._start_component(self.programs["kube-apiserver"])
            recorded = asyncio.get_running_loop().run_in_executor(None, self._record)
            switched = asyncio.create_task(self._switch_on_all())
            try:
                await self._or_failure(self._api_ready())
            finally:
                await recorded
                await switched
        async with step("controllers and scheduler"):
            self._start_component(self.programs["kube-controller-manager"])
            self._start_component(self.programs["kube-scheduler"])
            await self._or_failure(self._make_joinable())
        if self.spec.kubelet is not None:
            async with step(f"{len(self.machines)} machines join"):
                await self._or_failure(self._join_all())
                await self._or_failure(self._nodes_ready())
                await self._or_failure(self._spend_tokens())
        async with step("default service account"):
            await self._or_failure(self._default_account())
        self._write_state()
        self.starting = False

    def _make_folders(self) -> None:
        for path, mode in (
            (self.folder.logs, 0o755),
            (self.folder.machines, 0o755),
            (self.folder.models, 0o755),
            (self.folder.control_plane, 0o700),
        ):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)

    def _make_pki(self) -> None:
        from thunderfleet_localcluster.controlplane import components
        from thunderfleet_localcluster.controlplane.pki import kubeconfig, make_pki, write_secret

        here = str(self.layout.control_plane.ip)
        if self.layout.mode == "namespaces":
            self.at = components.Endpoints(here, 6443, "127.0.0.1", 2379, 2380, 10257, 10259, loopback=False)
        else:
            ports: set[int] = set()
            while len(ports) < 4:
                ports.add(free_port(here))
            client, peer, controllers, scheduler = ports
            self.at = components.Endpoints(here, 6443, here, client, peer, controllers, scheduler, loopback=True)
        self.pki = make_pki(self.folder.pki, ["127.0.0.1", "localhost", here], ["127.0.0.1", here, "localhost"])
        outer = f"https://127.0.0.1:{self.listeners[0].getsockname()[1]}"
        pki, admin = self.pki, ("kubernetes-admin", self.pki.admin_certificate, self.pki.admin_key)
        name = self.spec.name
        write_secret(self.folder.kubeconfig, kubeconfig(name, outer, pki.ca_pem, *admin).encode())
        write_secret(self.folder.inner_kubeconfig, kubeconfig(name, self.at.server, pki.ca_pem, *admin).encode())
        own: dict[str, Path] = {}
        for program in ("kube-controller-manager", "kube-scheduler"):
            pair = pki.pair(program)
            own[program] = self.folder.control_plane / f"{program}.kubeconfig"
            text = kubeconfig(name, self.at.server, pki.ca_pem, program, pair.certificate.read_bytes(), pair.key.read_bytes())
            write_secret(own[program], text.encode())
        audit_log = audit_policy = None
        if self.spec.audit:
            audit_log, audit_policy = self.folder.log("audit"), self.folder.control_plane / "audit-policy.json"
            audit_policy.write_text(json.dumps(components.AUDIT_POLICY))
        assets = self.spec.assets
        programs = (
            components.etcd(assets / "etcd", self.folder.control_plane / "etcd", pki, self.at),
            components.api_server(assets / "kube-apiserver", pki, self.at, audit_log, audit_policy),
            components.controller_manager(assets / "kube-controller-manager", pki, own["kube-controller-manager"], self.at),
            components.scheduler(assets / "kube-scheduler", pki, own["kube-scheduler"], self.at),
        )
        self.programs = {program.name: program for program in programs}

    async def _listen(self) -> None:
        from thunderfleet_localcluster.fleet.layout import CABLES
        from thunderfleet_localcluster.network.forward import serve_forward, serve_proxy

        networks: list[IPv4Network] = [self.layout.control_plane.network, CABLES]
        if self.layout.mode == "loopback":
            networks = [IPv4Network(f"{self.layout.control_plane.ip}/16", strict=False)]
        self.servers = [
            await serve_forward(self.listeners[0], self.at.api, self.at.api_port),
            await serve_proxy(self.listeners[1], networks),
        ]

    def _start_component(self, program: "Program") -> None:
        path = self.folder.log(program.name)
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder.control_plane), **program.env}
        self.components[program.name] = self.children.start(program.name, program.argv, env=env, log=path)

    def _ended(self, child: "Child") -> None:
        if child.name in self.components and self.components[child.name] is child and child.name not in self.held:
            text = child.describe_end()
            log.error("%s", text)
            if self.starting and self.failure and not self.failure.done():
                self.failure.set_result(text)

    async def _or_failure(self, work: Awaitable[None]) -> None:
        """Waits for ``work``, but not longer than the control plane lives."""
        assert self.failure is not None
        task = asyncio.ensure_future(work)
        waited: set[asyncio.Future[Any]] = {task, self.failure}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self.failure.done():
                raise LocalClusterError(self.failure.result())
            await task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    async def _api_ready(self) -> None:
        from thunderfleet_lib.kube import ApiError, Kube

        pair = self.pki.pair("admin")
        self._kube = Kube.with_files(self.at.server, self.pki.ca, certificate=pair.certificate, key=pair.key)
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                await self.kube.request("GET", "/readyz", seconds=5)
                return
            except ApiError as error:
                if time.monotonic() > deadline:
                    raise LocalClusterError(
                        f"the API server was not ready within {READY_SECONDS} s: {error}; "
                        f"see {self.folder.log('kube-apiserver')}"
                    ) from error
            await asyncio.sleep(0.1)

    async def _make_joinable(self) -> None:
        from thunderfleet_lib.kube import ApiError, Kube

        from thunderfleet_localcluster.controlplane.approver import Approver
        from thunderfleet_localcluster.controlplane.components import joining_objects

        for path, body in joining_objects(self.spec.name, self.at.server, self.pki.ca_pem):
            for attempt in range(50):
                try:
                    await self.kube.create(path, body)
                    break
                except ApiError as error:
                    # kube-public and the cluster roles come a moment after the API server says that it is ready.
                    if error.status == 409:
                        break
                    if attempt == 49 or (error.status not in (0, 404, 403) and not error.transient):
                        raise LocalClusterError(f"cannot create {body['kind']} {body['metadata']['name']}: {error}") from error
                await asyncio.sleep(0.2)
        pair = self.pki.pair("approver")

        async def approve() -> None:
            async with Kube.with_files(self.at.server, self.pki.ca, certificate=pair.certificate, key=pair.key) as kube:
                await Approver(kube).run()

        self._spawn(approve(), "the approver of kubelets' certificates")

    def _spawn(self, work: Any, what: str) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)

        def done(finished: asyncio.Task[Any]) -> None:
            self.tasks.discard(finished)
            if not finished.cancelled() and finished.exception():
                log.error("%s stopped", what, exc_info=finished.exception())

        task.add_done_callback(done)

    async def _default_account(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while await self.kube.get_or_none("/api/v1/namespaces/default/serviceaccounts/default") is None:
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"no default service account within {READY_SECONDS} s; see {self.folder.log('kube-controller-manager')}"
                )
            await asyncio.sleep(0.1)

    @property
    def kube(self) -> "Kube":
        """The administrator's connection to the API server."""
        if self._kube is None:
            raise LocalClusterError("the API server has not been started yet")
        return self._kube

    # -- machines ----------------------------------------------------------------------------------------------------------

    def _record(self) -> None:
        """Writes what every machine needs on disk."""
        import yaml

        from thunderfleet_localcluster.fleet.layout import KUBELET_PORT
        from thunderfleet_localcluster.recorded.folder import write_machine

        for machine in self.layout.machines:
            home = self.folder.machine(machine.name)
            home.mkdir(parents=True, exist_ok=True)
            config: dict[str, Any] = {
                "nodeName": machine.name,
                "addresses": [str(machine.lan.ip)],
                "port": KUBELET_PORT,
                "defaultUser": self.spec.user,
                "images": {self.spec.image_name: self.spec.image_folder} if self.spec.image_name else {},
            }
            if machine.machine.kind == "mac":
                now = self.live.layout(self.layout)
                write_machine(now, now.machine(machine.name), home / "bin", self.live.damaged(machine.name))
                config["path"] = [str(home / "bin")]
                if machine.machine.jaccl == "recorded":
                    config["pythonPath"] = [str(home / "python")]
            (home / "kubelet.yaml").write_text(yaml.safe_dump(config, sort_keys=False))

    async def _switch_on_all(self) -> None:
        from thunderfleet_localcluster.machines.machine import Machine

        for layout in self.layout.machines:
            binaries = self.folder.machine(layout.name) / "bin" if layout.machine.kind == "mac" else None
            self.machines[layout.name] = Machine(
                layout, self.layout.mode, self.children, self.folder.log(f"kubelet-{layout.name}"), binaries
            )
        await asyncio.gather(*(machine.switch_on() for machine in self.machines.values()))
        if self.layout.mode == "namespaces":
            await self._plug(set(self.machines))

    async def _plug(self, fresh: Collection[str], cable: int | None = None) -> None:
        """Plugs in the LAN of the ``fresh`` machines, and every cable that has one of them at an end; and that ``cable``."""
        from thunderfleet_localcluster.fleet.fault_state import ends_of
        from thunderfleet_localcluster.network import namespaces

        commands, inside = "", {name: "" for name in self.machines}
        for index, layout in enumerate(self.layout.machines):
            if layout.name in fresh:
                commands += namespaces.plug_lan(index, layout, self.machines[layout.name].pid)
                if layout.name in self.live.cut:
                    commands += namespaces.pull_lan(index, plugged=False)
                inside[layout.name] += namespaces.inside_commands(layout)
        slow: list[tuple[str, str, int]] = []
        deaf: list[tuple[str, str]] = []
        now = self.live.rewired(self.layout)
        for index in range(len(self.fleet.cables)):
            ends = dict(ends_of(now, index))
            if index != cable and not any(name in fresh for name in ends):
                continue
            if not all(self.machines[name].on for name in ends):
                continue
            commands += namespaces.plug_cable({self.machines[name].pid: (name, end) for name, end in ends.items()})
            for name, end in ends.items():
                inside[name] += namespaces.end_commands(end)
                if not self.live.carries(index):
                    inside[name] += namespaces.pull_commands(end, plugged=False)
                if rate := self.live.rate(end):
                    slow.append((name, end.interface, rate))
                if (index, end.peer) in self.live.oneway:
                    deaf.append((name, end.interface))
        namespaces.ip_batch(commands)
        ip, tc = namespaces.program("ip") or "ip", namespaces.program("tc") or "tc"

        async def run(name: str, argv: list[str], text: str = "") -> None:
            ran = await self.machines[name].run(argv, text)
            if ran.code:
                raise LocalClusterError(f"{name}: {' '.join(argv)}: {ran.stderr.strip()}")

        await asyncio.gather(*(run(name, [ip, "-batch", "-"], text) for name, text in inside.items() if text))
        for name, interface, rate in slow:
            await run(name, [tc, *namespaces.rate_rule(interface, rate)])
        for name, interface in deaf:
            for rule in namespaces.deafen_rules(interface, True)[1:]:
                await run(name, [tc, *rule])

    async def _join_all(self) -> None:
        await asyncio.gather(*(self._start_kubelet(machine) for machine in self.machines.values()))

    async def _start_kubelet(self, machine: "Machine") -> None:
        assert self.spec.kubelet is not None
        home = self.folder.machine(machine.name)
        files = ["--root", str(home / "kubelet"), "--config", str(home / "kubelet.yaml")]
        if machine.name in self.joined:
            argv = [*self.spec.kubelet, "run", *files]
        else:
            token = self.tokens[machine.name] = await self.make_token(f"for {machine.name}")
            join = ["join", "--server", self.at.server, "--token", token, "--ca-hash", self.pki.ca_hash]
            argv = [*self.spec.kubelet, *join, *files]
        await machine.start_kubelet(argv, self.folder.log(f"kubelet-{machine.name}"))

    async def _spend_tokens(self) -> None:
        """Removes the tokens of machines that have joined: whoever sees a process list could join by them."""
        for token in self.tokens.values():
            await self.kube.delete(f"/api/v1/namespaces/kube-system/secrets/bootstrap-token-{token.split('.')[0]}")
        self.joined |= set(self.tokens)
        self.tokens.clear()

    async def make_token(self, description: str) -> str:
        """A new bootstrap token, valid for an hour."""
        from thunderfleet_localcluster.controlplane.components import bootstrap_token

        alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
        identifier, secret = ("".join(secrets.choice(alphabet) for _ in range(length)) for length in (6, 16))
        expires = (datetime.now(UTC) + timedelta(hours=TOKEN_HOURS)).strftime("%Y-%m-%dT%H:%M:%SZ")
        await self.kube.create(
            "/api/v1/namespaces/kube-system/secrets", bootstrap_token(identifier, secret, expires, description)
        )
        return f"{identifier}.{secret}"

    async def _nodes_ready(self) -> None:
        from thunderfleet_localcluster.machines.children import tail

        deadline = time.monotonic() + NODES_SECONDS
        while True:
            items, _ = await self.kube.list("/api/v1/nodes")
            ready = {str(item["metadata"]["name"]) for item in items if node_ready(item)}
            missing = [name for name in self.machines if name not in ready]
            if not missing:
                return
            for name in missing:
                machine = self.machines[name]
                if machine.kubelet_pid is None:
                    raise LocalClusterError(
                        f"the kubelet of {name} ended ({machine.kubelet_end}); the last lines of "
                        f"{machine.log_file}:\n{tail(machine.log_file)}"
                    )
            if time.monotonic() > deadline:
                first = self.machines[missing[0]]
                raise LocalClusterError(
                    f"not Ready within {NODES_SECONDS} s: {', '.join(missing)}; the last lines of "
                    f"{first.log_file}:\n{tail(first.log_file)}"
                )
            await asyncio.sleep(0.2)

    # -- while it runs -----------------------------------------------------------------------------------------------------

    def _write_state(self) -> None:
        proxy = f"http://127.0.0.1:{self.listeners[1].getsockname()[1]}"
        self.state = {
            "name": self.spec.name,
            "folder": str(self.folder.root),
            "network": self.layout.mode,
            "reason": self.spec.reason,
            "server": f"https://127.0.0.1:{self.listeners[0].getsockname()[1]}",
            "innerServer": self.at.server,
            "proxy": proxy,
            "kubeconfig": str(self.folder.kubeconfig),
            "innerKubeconfig": str(self.folder.inner_kubeconfig),
            "caHash": self.pki.ca_hash,
            "assets": str(self.spec.assets),
            "logs": str(self.folder.logs),
            "models": str(self.folder.models),
            "image": {"name": self.spec.image_name, "folder": self.spec.image_folder},
            "defaultUser": self.spec.user,
            "machines": [
                {
                    "name": machine.name,
                    "kind": machine.machine.kind,
                    "model": machine.machine.model,
                    "address": str(machine.lan.ip),
                    "folder": str(self.folder.machine(machine.name)),
                    "log": str(self.folder.log(f"kubelet-{machine.name}")),
                    "cables": [
                        {
                            "port": end.port,
                            "interface": end.interface,
                            "address": str(end.address.ip) if end.address else None,
                            "peer": end.peer,
                            "peerPort": end.peer_port,
                        }
                        for end in machine.ends
                    ],
                }
                for machine in self.live.rewired(self.layout).machines
            ],
        }
        fresh = self.folder.state.with_suffix(".new")
        fresh.write_text(json.dumps(self.state, indent=2) + "\n")
        fresh.replace(self.folder.state)

    async def orders(self) -> asyncio.Server:
        """Listens in the cluster's folder. The keeper's working directory is that folder: paths of sockets are short."""
        with contextlib.suppress(FileNotFoundError):
            self.folder.socket.unlink()
        old = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(self._order, path=self.folder.socket.name, limit=1 << 20)
        finally:
            os.umask(old)

    async def _order(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from thunderfleet_lib.kube import ApiError

        with contextlib.suppress(OSError):
            line = await reader.readline()
            try:
                answer: dict[str, Any] = await self._obey(json.loads(line))
            except (LocalClusterError, ApiError) as error:
                answer = {"error": str(error), "usage": getattr(error, "usage", False)}
            except Exception as error:
                log.exception("order failed")
                answer = {"error": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
            writer.close()

    async def _obey(self, order: dict[str, Any]) -> dict[str, Any]:
        what = str(order.get("do"))
        orders: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "status": self._status,
            "down": self._down,
            "token": self._token,
            "machine": self._machine,
            "component": self._component,
            "run": self._run,
            "change": self._change,
        }
        if what not in orders:
            raise LocalClusterError(f"unknown order {what!r}")
        if self.starting and what not in ("status", "down"):
            raise LocalClusterError(f"cluster {self.spec.name} is still starting")
        return await orders[what](order)

    async def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        from thunderfleet_lib.kube import ApiError

        from thunderfleet_localcluster.machines.children import tail

        nodes: dict[str, str] = {}
        with contextlib.suppress(ApiError, LocalClusterError):
            items, _version = await self.kube.list("/api/v1/nodes")
            nodes = {str(item["metadata"]["name"]): "Ready" if node_ready(item) else "NotReady" for item in items}
        return {
            "state": {**self.state, "starting": self.starting},
            "components": [
                {
                    "name": name,
                    "pid": child.pid if child.running else None,
                    "end": "" if child.running else "stopped" if name in self.held else f"exit code {child.code}",
                    "log": str(child.log),
                    "tail": "" if child.running or name in self.held or child.log is None else tail(child.log),
                }
                for name, child in self.components.items()
            ],
            "machines": [
                {
                    "name": machine.name,
                    "on": machine.on,
                    "pid": machine.first.pid if machine.first and machine.first.running else None,
                    "kubelet": machine.kubelet_pid,
                    "end": machine.kubelet_end,
                    "node": nodes.get(machine.name, "none"),
                }
                for machine in self.machines.values()
            ],
        }

    async def _down(self, _: dict[str, Any]) -> dict[str, Any]:
        self.stop.set()
        return {}

    async def _token(self, order: dict[str, Any]) -> dict[str, Any]:
        return {
            "token": await self.make_token(str(order.get("description") or "by thunderfleet token")),
            "caHash": self.pki.ca_hash,
        }

    def _known(self, order: dict[str, Any]) -> "Machine":
        name = str(order.get("name"))
        if name not in self.machines:
            raise LocalClusterError(f"no machine is named {name}; machines: {', '.join(self.machines)}", usage=True)
        return self.machines[name]

    async def _machine(self, order: dict[str, Any]) -> dict[str, Any]:
        machine, action = self._known(order), str(order.get("action"))
        match action:
            case "kill-kubelet":
                await machine.kill_kubelet(signal.SIGKILL)
            case "stop-kubelet":
                await machine.kill_kubelet(signal.SIGTERM)
            case "freeze-kubelet":
                await machine.signal_kubelet(signal.SIGSTOP)
            case "thaw-kubelet":
                await machine.signal_kubelet(signal.SIGCONT)
            case "start-kubelet":
                if self.spec.kubelet is None:
                    raise LocalClusterError("this cluster was started without kubelets")
                await self._start_kubelet(machine)
            case "off":
                await machine.switch_off()
                self.live = self.live.power(machine.name, False)
                self._rewrite()
            case "on":
                if machine.on:
                    raise LocalClusterError(f"{machine.name} is on already")
                self.live = self.live.power(machine.name, True)
                self._rewrite()
                await machine.switch_on()
                if self.layout.mode == "namespaces":
                    await self._plug({machine.name})
                if self.spec.kubelet is not None:
                    await self._start_kubelet(machine)
            case _:
                known = "kill-kubelet, stop-kubelet, start-kubelet, freeze-kubelet, thaw-kubelet, off or on"
                raise LocalClusterError(f"unknown action {action!r}: {known}")
        return {}

    def _rewrite(self) -> None:
        """Commands of every Mac say what is now."""
        from thunderfleet_localcluster.recorded.folder import write_machine

        now = self.live.layout(self.layout)
        for machine in now.machines:
            if machine.machine.kind == "mac":
                write_machine(now, machine, self.folder.machine(machine.name) / "bin", self.live.damaged(machine.name))

    async def _change(self, order: dict[str, Any]) -> dict[str, Any]:
        """Something happens to a cable, an RDMA stack or a command while the cluster runs."""
        from thunderfleet_localcluster.fleet.fault_state import ends_of, find_cable
        from thunderfleet_localcluster.recorded import jaccl

        what, action = str(order.get("what")), str(order.get("action"))
        if what == "cable":
            if action == "move":
                return await self._move(str(order.get("end")), str(order.get("to")))
            now = self.live.rewired(self.layout)
            index = find_cable(now, str(order.get("end")))
            if action == "cut":
                if self.layout.mode != "namespaces":
                    raise LocalClusterError("without network namespaces no cable can be cut in one direction", usage=True)
                self.live = self.live.one_way(index, str(order.get("end")).partition(":")[0])
                await asyncio.gather(*(self._apply_end(name, end) for name, end in ends_of(now, index)))
                return {}
            if order.get("rate") is not None and self.layout.mode != "namespaces":
                raise LocalClusterError("without network namespaces a cable is slow in what commands print only: --speed")
            self.live = self.live.cable(index, action, order.get("rate"), order.get("speed"))
            self._rewrite()
            if self.layout.mode == "namespaces":
                await asyncio.gather(*(self._apply_end(name, end) for name, end in ends_of(now, index)))
            return {}
        machine = self._known(order)
        if what == "lan":
            return await self._change_lan(machine, action)
        if machine.layout.machine.kind != "mac":
            raise LocalClusterError(f"{machine.name} is no Mac", usage=True)
        if what == "rdma":
            self.live = self.live.switch(machine.name, action)
        elif what == "command":
            self.live = self.live.command(machine.name, str(order.get("command")), action)
        elif what == "jaccl":
            if machine.layout.machine.jaccl != "recorded":
                raise LocalClusterError(f"{machine.name} has no recorded JACCL (jaccl: recorded in the fleet file)", usage=True)
            jaccl.write_control(order.get("points"), self.folder.machine(machine.name) / "python")
            return {}
        else:
            raise LocalClusterError(f"unknown change {what!r}: cable, lan, rdma, jaccl or command")
        self._rewrite()
        return {}

    async def _move(self, end: str, to: str) -> dict[str, Any]:
        """The plug at ``end`` goes into the port ``to``: the old line is taken away and a new one laid."""
        from thunderfleet_localcluster.fleet.fault_state import ends_of, find_cable
        from thunderfleet_localcluster.network import namespaces

        before = self.live.rewired(self.layout)
        index = find_cable(before, end)
        self.live = self.live.move(self.layout, end, to)
        if self.layout.mode == "namespaces":
            ends = ends_of(before, index)
            name, old = ends[0]
            if all(self.machines[owner].on for owner, _ in ends):
                ran = await self.machines[name].run(
                    [namespaces.program("ip") or "ip", "-batch", "-"], namespaces.unplug_commands(old)
                )
                if ran.code:
                    raise LocalClusterError(f"{name}: {ran.stderr.strip()}")
            await self._plug((), index)
        self._rewrite()
        self._write_state()
        return {}

    async def _change_lan(self, machine: "Machine", action: str) -> dict[str, Any]:
        """A machine's LAN port is unplugged or plugged in again."""
        from thunderfleet_localcluster.network import namespaces

        if self.layout.mode != "namespaces":
            raise LocalClusterError("without network namespaces there is no LAN to unplug a machine from", usage=True)
        self.live = self.live.lan(machine.name, action)
        self._rewrite()
        if machine.on:
            namespaces.ip_batch(namespaces.pull_lan(list(self.machines).index(machine.name), machine.name not in self.live.cut))
        return {}

    async def _apply_end(self, name: str, end: "CableEnd") -> None:
        """One end of a cable in its machine's network as the live state has it. A machine that is off has none."""
        from thunderfleet_localcluster.network import namespaces

        machine = self.machines[name]
        if not machine.on or not self.machines[end.peer].on:
            return
        ip, tc = namespaces.program("ip") or "ip", namespaces.program("tc") or "tc"
        rate, commands = self.live.rate(end), namespaces.pull_commands(end, self.live.carries(end.index))
        ran = await machine.run([ip, "-batch", "-"], commands)
        if not ran.code:
            ran = await machine.run([tc, *namespaces.rate_rule(end.interface, rate)])
        # There is nothing to take away where nothing was slowed.
        if ran.code and rate is not None:
            raise LocalClusterError(f"{name}: {ran.stderr.strip()}")
        clear, *rules = namespaces.deafen_rules(end.interface, (end.index, end.peer) in self.live.oneway)
        await machine.run([tc, *clear])
        for rule in rules:
            ran = await machine.run([tc, *rule])
            if ran.code:
                raise LocalClusterError(f"{name}: {ran.stderr.strip()}")

    async def _component(self, order: dict[str, Any]) -> dict[str, Any]:
        name, action = str(order.get("name")), str(order.get("action"))
        child = self.components.get(name)
        if child is None:
            raise LocalClusterError(f"no component is named {name}; components: {', '.join(self.components)}", usage=True)
        if action == "off":
            self.held.add(name)
            child.kill(signal.SIGKILL)
            await asyncio.wait_for(child.ended.wait(), 10)
        elif action == "on":
            if child.running:
                raise LocalClusterError(f"{name} runs already")
            self.held.discard(name)
            self._start_component(self.programs[name])
        elif action in ("freeze", "thaw"):
            if not child.running:
                raise LocalClusterError(f"{name} does not run")
            child.kill(signal.SIGSTOP if action == "freeze" else signal.SIGCONT)
        else:
            raise LocalClusterError(f"unknown action {action!r}: off, on, freeze or thaw")
        return {}

    async def _run(self, order: dict[str, Any]) -> dict[str, Any]:
        ran = await self._known(order).run(
            [str(part) for part in order["argv"]], str(order.get("input") or ""), float(order.get("seconds") or 30)
        )
        return {"code": ran.code, "stdout": ran.stdout, "stderr": ran.stderr}

    # -- ending ------------------------------------------------------------------------------------------------------------

    async def take_down(self) -> None:
        """Ends every process. In namespaces the rest goes with this one."""
        for task in (tasks := list(self.tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._kube is not None:
            await self._kube.close()
        self.children.on_end = None
        if self.layout.mode == "loopback":
            with contextlib.suppress(LocalClusterError):
                await asyncio.gather(*(machine.switch_off() for machine in self.machines.values()))
            for child in list(self.children.all.values()):
                child.kill()
            for _ in range(250):
                left = descendants(os.getpid())
                if not left:
                    break
                kill_all(left)
                self.children.reap()
                await asyncio.sleep(0.02)
        with contextlib.suppress(OSError):
            self.folder.state.unlink()
        with contextlib.suppress(OSError):
            self.folder.socket.unlink()


def node_ready(node: dict[str, Any]) -> bool:
    """Whether the Node's condition Ready is True."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


async def _lifeline(keeper: Keeper) -> None:
    """Reads the lifeline; its end without a word is the end of the cluster."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        if line.strip() == b"detach":
            keeper.detached = True
            keeper.reporter.open = False
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.close(null)
            return
    log.info("whoever wanted this cluster is gone")
    keeper.stop.set()


async def keep(folder: ClusterFolder, spec: Spec, listeners: list[socket.socket]) -> int:
    """The life of a cluster. Exit code: 0 when it ended as asked, 1 when it could not start."""
    reporter = Reporter()
    keeper: Keeper | None = None
    code = 0
    try:
        keeper = Keeper(folder, spec, listeners, reporter)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, keeper.stop.set)
        keeper.children.listen()
        server = await keeper.orders()
        lifeline = asyncio.create_task(_lifeline(keeper))
        stopped = asyncio.create_task(keeper.stop.wait())
        up = asyncio.create_task(keeper.up())
        await asyncio.wait({up, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            up.result()
            reporter.say(state="ready", cluster=keeper.state)
            await stopped
        else:
            up.cancel()
            with contextlib.suppress(asyncio.CancelledError, LocalClusterError):
                await up
        lifeline.cancel()
        server.close()
    except LocalClusterError as error:
        log.error("%s", error)
        reporter.say(state="failed", error=str(error))
        code = 1
    except Exception as error:
        log.exception("the keeper failed")
        reporter.say(state="failed", error=f"{type(error).__name__}: {error}; see {folder.log('keeper')}")
        code = 1
    if keeper is not None:
        await keeper.take_down()
    return code


def _take_lock(folder: ClusterFolder) -> int:
    """The lock that says that this cluster has a keeper; held by every process that inherits it. Raises LocalClusterError."""
    lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise LocalClusterError(f"a cluster runs in {folder.root} already") from error
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _clean(folder: ClusterFolder) -> None:
    """Removes what an earlier cluster in this folder left: its data are of no use without its keys. Logs are begun anew,
    models stay.
    """
    for path in (folder.control_plane, folder.machines, folder.logs):
        if path == folder.logs:
            for old in path.glob("*.log"):
                if old != folder.log("keeper"):
                    old.unlink(missing_ok=True)
        elif path.exists():
            shutil.rmtree(path)
    for file in (folder.state, folder.kubeconfig, folder.socket):
        file.unlink(missing_ok=True)


def _hold_image(path: str | None) -> None:
    """A shared lock on the image for as long as this process lives, so that nobody prunes it."""
    if path:
        fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), fcntl.LOCK_SH)


def _inside(folder: ClusterFolder, spec: Spec, listeners: list[socket.socket]) -> int:
    return asyncio.run(keep(folder, spec, listeners))


def _namespaces(folder: ClusterFolder, spec: Spec, listeners: list[socket.socket]) -> int:
    """Runs the keeper as the first process of new namespaces and waits for it."""
    from thunderfleet_localcluster.network.namespaces import enter_namespaces

    enter_namespaces()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            libc_call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            mount_own_proc()
            code = _inside(folder, spec, listeners)
        except BaseException:
            log.exception("the keeper failed")
        finally:
            os._exit(code)
    for listener in listeners:
        listener.close()
    # Standard input and output are the child's: their ends must be seen by those at the other end.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    """Entry point of the process that ``thunderfleet up`` starts; not meant for people."""
    parser = argparse.ArgumentParser(prog="thunderfleet-keeper", description="Keeps one cluster; started by `thunderfleet up`.")
    parser.add_argument("spec", type=Path, help="what to keep (JSON)")
    parser.add_argument("--folder", type=Path, required=True, help="the cluster's folder")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    folder = ClusterFolder(arguments.folder)
    reporter = Reporter()
    try:
        spec = Spec(json.loads(arguments.spec.read_text()))
        os.chdir(folder.root)
        _take_lock(folder)
        _clean(folder)
        _hold_image(spec.image_lock)
        listeners = []
        for _ in range(2):
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            listeners.append(listener)
        if spec.mode == "namespaces":
            return _namespaces(folder, spec, listeners)
        if sys.platform.startswith("linux"):
            libc_call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return _inside(folder, spec, listeners)
    except (LocalClusterError, OSError) as error:
        log.error("%s", error)
        reporter.say(state="failed", error=str(error))
        return 1
