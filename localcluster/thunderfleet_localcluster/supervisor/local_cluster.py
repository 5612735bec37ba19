"""One running cluster: its parts, its addresses, and its end."""

import asyncio
import contextlib
import os
import secrets
import socket
import sys
from ipaddress import IPv4Network
from typing import Any

from thunderfleet_controlplane.components import Endpoints
from thunderfleet_lib.kube import Kube
from thunderfleet_lib.net import tls

from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import CABLES, Layout, plan_layout
from thunderfleet_localcluster.machines import descendants
from thunderfleet_localcluster.machines.children import Children
from thunderfleet_localcluster.network.forward import serve_forward
from thunderfleet_localcluster.network.http_proxy import proxy_url, serve_proxy
from thunderfleet_localcluster.network.namespaces import can_bind, ip_batch
from thunderfleet_localcluster.network.plan import lan_commands, missing_aliases
from thunderfleet_localcluster.supervisor import state
from thunderfleet_localcluster.supervisor.control_plane import ControlPlane
from thunderfleet_localcluster.supervisor.joining import Joining
from thunderfleet_localcluster.supervisor.machine_pool import MachinePool
from thunderfleet_localcluster.supervisor.spec import Spec

CLAIM_PORT = 6442
"""A loopback cluster listens here on the last address of its block, so that no other cluster takes the block."""
BLOCKS = range(64, 250)
FIRST_BLOCK = BLOCKS[0]
END_ROUNDS = 250
END_POLL_SECONDS = 0.02


class LocalCluster:
    """The parts of one cluster. ``listeners``: sockets in the host's network, for the API server and for the HTTP proxy."""

    def __init__(self, folder: ClusterFolder, spec: Spec, listeners: tuple[socket.socket, socket.socket]) -> None:
        self.folder, self.spec = folder, spec
        self._api_listener, self._proxy_listener = listeners
        self._proxy_token = secrets.token_hex(16)
        self._servers: list[asyncio.Server] = []
        self.plan, self._claim = _layout(spec)
        self.children = Children()
        self.children.listen()
        make_folders(folder)
        self.starting = True
        self.at = _endpoints(self.plan, spec.control_plane_mac)
        self.pool = MachinePool(folder, spec, self.plan, self.children)
        self._own: tuple[ControlPlane, Joining] | None = None
        if spec.control_plane_mac is None:
            control_plane = ControlPlane(folder, spec, self.children, self.at)
            control_plane.write_kubeconfigs(self._outer_server)
            self._own = control_plane, Joining(folder, spec, control_plane, self.pool)

    @property
    def control_plane(self) -> ControlPlane:
        """The control plane that the supervisor runs. Raises LocalClusterError if a Mac has it."""
        return self._run_here()[0]

    @property
    def joining(self) -> Joining:
        """The object that starts kubelets. Raises LocalClusterError if launchd starts them."""
        return self._run_here()[1]

    def _run_here(self) -> tuple[ControlPlane, Joining]:
        if self._own is None:
            execute = f"thunderfleet local machine --name {self.spec.name} exec {self.spec.control_plane_mac}"
            raise LocalClusterError(
                "the control plane and the kubelets of this cluster are LaunchDaemons of its Macs; use launchctl there, for "
                f"example `{execute} -- launchctl print system/io.thunderfleet.etcd`. A new line for `thunderfleet join` is "
                f"printed by `{execute} -- {self.spec.image.folder}/bin/thunderfleet token create`"
            )
        return self._own

    @property
    def _outer_server(self) -> str:
        return f"https://127.0.0.1:{self._api_listener.getsockname()[1]}"

    async def open_network(self) -> None:
        """Create the LAN, and serve the forwarder and the proxy."""
        networks: list[IPv4Network] = [self.plan.control_plane.network, CABLES]
        if self.plan.mode == "namespaces":
            ip_batch(lan_commands(self.plan))
        else:
            networks = [IPv4Network(f"{self.plan.control_plane.ip}/16", strict=False)]
        self._servers = [
            await serve_forward(self._api_listener, self.at.api, self.at.api_port),
            await serve_proxy(self._proxy_listener, networks, self._proxy_token),
        ]

    async def nodes(self) -> list[dict[str, Any]]:
        """The Nodes. Raises ApiError, or LocalClusterError if no control plane is installed yet."""
        if self._own is not None:
            return (await self._own[0].kube.list("/api/v1/nodes"))[0]
        if not self.folder.inner_kubeconfig.exists():
            raise LocalClusterError("no control plane has been installed")
        async with await Kube.from_kubeconfig(self.folder.inner_kubeconfig) as kube:
            return (await kube.list("/api/v1/nodes"))[0]

    def components(self) -> list[state.ComponentStatus]:
        """The programs of the control plane that the supervisor runs."""
        return self._own[0].status() if self._own is not None else []

    def describe(self) -> dict[str, Any]:
        """The cluster as in its state file."""
        addresses = state.Addresses(
            server=self._outer_server,
            inner_server=self.at.server,
            proxy=proxy_url(self._proxy_listener.getsockname()[1], self._proxy_token),
            ca_hash=self._own[0].pki.ca_hash if self._own is not None else None,
        )
        return state.cluster_state(self.spec, self.folder, self.pool.faults.rewired(self.plan), addresses)

    def write_state(self) -> None:
        """Write the state file, which only its owner can read."""
        tls.write_private(self.folder.state, state.to_json(self.describe()).encode())

    async def take_down(self) -> None:
        """End every process. In namespaces the kernel ends the rest together with this process."""
        if self._own is not None:
            await self._own[0].close()
        if self.plan.mode == "loopback":
            await self._end_processes()
        for path in (self.folder.state, self.folder.socket):
            with contextlib.suppress(OSError):
                path.unlink()

    async def _end_processes(self) -> None:
        with contextlib.suppress(LocalClusterError):
            await asyncio.gather(*(machine.switch_off() for machine in self.pool.machines.values()))
        for child in list(self.children.all.values()):
            child.kill()
        for _ in range(END_ROUNDS):
            left = descendants.of(os.getpid())
            if not left:
                break
            descendants.kill_all(left)
            self.children.reap()
            await asyncio.sleep(END_POLL_SECONDS)


def _layout(spec: Spec) -> tuple[Layout, socket.socket | None]:
    """The layout, and in loopback mode the socket that claims its block of addresses. Raises LocalClusterError."""
    fleet = parse_fleet(spec.fleet, spec.fleet_file)
    if spec.mode == "namespaces":
        return plan_layout(fleet, spec.mode), None
    # Where loopback addresses must be added first (macOS) there is only one block.
    block, claim = (FIRST_BLOCK, None) if sys.platform == "darwin" else claim_block()
    plan = plan_layout(fleet, spec.mode, block)
    if lines := missing_aliases(plan, can_bind):
        raise LocalClusterError("loopback addresses are missing; add them with:\n" + "\n".join(lines))
    return plan, claim


def claim_block() -> tuple[int, socket.socket]:
    """A free second octet of loopback addresses, and the socket that claims it. Raises LocalClusterError."""
    for block in BLOCKS:
        claim = socket.socket()
        try:
            claim.bind((f"127.{block}.255.254", CLAIM_PORT))
            claim.listen(1)
        except OSError:
            claim.close()
            continue
        return block, claim
    raise LocalClusterError(
        f"no free loopback addresses (127.{BLOCKS[0]}.0.0 to 127.{BLOCKS[-1]}.255.255 are in use); stop another local cluster "
        "with `thunderfleet local down --name NAME`"
    )


def _endpoints(plan: Layout, mac: str | None) -> Endpoints:
    here = str(plan.control_plane.ip if mac is None else plan.machine(mac).lan.ip)
    if plan.mode == "namespaces":
        return Endpoints(here, 6443, "127.0.0.1", 2379, 2380, 10257, 10259, loopback=False)
    client, peer, controllers, scheduler = _free_ports(here, 4)
    return Endpoints(here, 6443, here, client, peer, controllers, scheduler, loopback=True)


def _free_ports(address: str, count: int) -> list[int]:
    """TCP ports that are free on ``address`` now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server((address, 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def make_folders(folder: ClusterFolder) -> None:
    """Create the folders of a cluster."""
    shared = (folder.logs, folder.machines, folder.models)
    for path, mode in (*((path, 0o755) for path in shared), (folder.control_plane, 0o700)):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
