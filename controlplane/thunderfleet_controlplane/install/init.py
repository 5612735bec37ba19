"""`thunderfleet init`: makes this Mac a control plane that survives reboots, and a Node of it.

Each step changes only what is not yet right, so running this again after an interruption at any point completes it, and running
it once more changes nothing.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from thunderfleet_lib.kube import Kube

from thunderfleet_controlplane.balancer import disk
from thunderfleet_controlplane.balancer.servers import ApiServer, entry, is_address
from thunderfleet_controlplane.daemons.job import Daemon
from thunderfleet_controlplane.daemons.plan import API_PORT, BALANCED, KUBELET, ORDER, HostConfig, daemons, from_state, label
from thunderfleet_controlplane.install.joinline import ADDRESSES, NAME_LENGTH, NAMES, JoinLine
from thunderfleet_controlplane.install.mac.daemons import put_daemon, why_not
from thunderfleet_controlplane.install.mac.facts import default_address, host_name, other_names
from thunderfleet_controlplane.install.mac.files import only_one, write_json
from thunderfleet_controlplane.install.mac.preflight import init_problems
from thunderfleet_controlplane.install.machine import Mac, refuse
from thunderfleet_controlplane.install.peers import settle as peers
from thunderfleet_controlplane.install.steps import chart, cluster
from thunderfleet_controlplane.install.steps.access import put_balancer
from thunderfleet_controlplane.install.steps.certificates import inputs_of, put_certificates
from thunderfleet_controlplane.install.steps.kubelet import Cluster, KubeletInstaller
from thunderfleet_controlplane.install.steps.programs import put_control_plane, put_python, python_environment
from thunderfleet_controlplane.pki_files import ClusterPki

CONTROL_PLANE_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")


@dataclass(frozen=True)
class InitOptions:
    """The command line. None: from an earlier run, else the host name and the address of the default route."""

    name: str | None = None
    address: str | None = None
    kubelet_config: Path | None = None
    thunderbolt_ports: str | None = None
    chart: bool = True
    dry_run: bool = False


def init(mac: Mac, wanted: InitOptions) -> None:
    """Install. Raises InstallError; running it again continues."""
    config = _configuration(mac, wanted)
    if wanted.dry_run:
        _describe(mac, config)
        return
    with only_one(mac.layout.lock):
        pki = install(mac, wanted, config)
        token = asyncio.run(_make_token(config))
    _farewell(mac, config, pki, token)


def install(
    mac: Mac, wanted: InitOptions, config: HostConfig, settle: Callable[[Mac, HostConfig], None] | None = None
) -> ClusterPki:
    """Carry out all steps; the certificates. Raises InstallError.

    ``settle``: waits until the started etcd can be used by an API server, if it has other members.
    """
    layout, launchctl = mac.layout, mac.launchctl
    mac.step("programs", "installing the programs")
    python = put_python(layout, mac.shipped.digest, lambda part: mac.shipped.build(part, layout.programs))
    programs = put_control_plane(layout, CONTROL_PLANE_PROGRAMS, mac.shipped.find_programs())
    put_control_plane(layout, ("etcdutl",), mac.shipped.find_etcdutl())
    mac.step("programs", f"{python}, {layout.control_plane_programs}")
    mac.step("certificates", f"creating the missing certificates in {layout.pki.folder}")
    pki = put_certificates(config)
    mac.step("certificates", f"new: {', '.join(pki.issued) or 'none'}")
    write_json(layout.state, config.state())
    environment = python_environment(python)
    peers.check_data(config)
    etcd, *servers, approver = daemons(config, inputs_of(config, programs), environment, python)
    _put(mac, etcd)
    if config.shared:
        (settle or peers.settle)(mac, config)
    for daemon in servers:
        _put(mac, daemon)
    put_balancer(mac, python, environment, own_servers(config), control_plane=True)
    kubelet = KubeletInstaller(layout, launchctl, python, environment)
    kubelet.write_config(config.name, wanted.kubelet_config, wanted.thunderbolt_ports, control_plane=True)
    started = f"{mac.shipped.version}-{programs}"
    asyncio.run(_make_cluster(mac, config, pki, kubelet, started, lambda: _put(mac, approver)))
    if wanted.chart:
        chart.install(mac, mac.shipped.chart(python))
    return pki


def _put(mac: Mac, daemon: Daemon) -> None:
    path = mac.layout.plist(daemon.label)
    started = put_daemon(mac.launchctl, path, daemon.label, daemon.to_plist(), daemon.exit_seconds)
    mac.step("daemons", f"{daemon.label}: {'started' if started else 'unchanged'}")


def _configuration(mac: Mac, wanted: InitOptions) -> HostConfig:
    mac.step("preflight", "checking this Mac")
    facts = mac.facts(ORDER)
    earlier = facts.initialised
    name = wanted.name or str(earlier.get("name") or host_name())
    address = wanted.address
    if address is None:
        known = earlier.get("address")
        address = str(known) if known in facts.addresses else default_address(mac.host)
    refuse(init_problems(facts, name, address))
    # init_problems has checked that this is an address.
    return replace(from_state(earlier, mac.layout, other_names()), name=name, address=str(address))


def own_servers(config: HostConfig) -> tuple[ApiServer, ...]:
    """The location of this Mac's API server for other Macs."""
    return tuple(ApiServer(host, API_PORT) for host in entry(config.address, config.names).split())


def _describe(mac: Mac, config: HostConfig) -> None:
    layout = config.layout
    mac.step("dry-run", f"Node {config.name}, API server {config.server}")
    mac.step("dry-run", f"certificate of the API server for {', '.join(config.server_names)}")
    mac.step("dry-run", f"programs in {layout.programs_root}, data in {layout.data}, logs in {layout.logs}")
    for name in ORDER:
        mac.step("dry-run", f"LaunchDaemon {layout.plist(label(name))}")


async def _make_cluster(
    mac: Mac, config: HostConfig, pki: ClusterPki, kubelet: KubeletInstaller, programs: str, put_approver: Callable[[], None]
) -> None:
    """The steps that use the API server."""
    launchctl, layout = mac.launchctl, mac.layout

    def describe(*names: str) -> str:
        return "\n".join(why_not(launchctl, layout, name, label(name)) for name in names)

    kube = cluster.connect(layout, config.local_server)
    async with kube:
        mac.step("wait", "waiting for the API server")
        await cluster.until_ready(kube, lambda: describe("etcd", "kube-apiserver"))
        mac.step("objects", "creating the objects that joining needs")
        await cluster.put_objects(kube, "thunderfleet", config.server, pki.ca_pem)
        await cluster.put_api_server(kube, config.name, entry(config.address, config.names), alone=not config.shared)
        # Started earlier, it would have no rights to read requests, and would back off.
        put_approver()
        await cluster.put_node(kube, config.name)
        await _join_self(mac, config, pki, kubelet, kube)
        mac.step("kubelet", f"starting {label(KUBELET)}")
        since = kubelet.start(programs)
        await cluster.until_node_ready(kube, config.name, since, lambda: describe(KUBELET, "approver"))
        mac.step("kubelet", f"Node {config.name} is Ready")
        await cluster.put_namespace(kube)
        await cluster.forget_unfinished_release(kube)


async def _make_token(config: HostConfig) -> str:
    async with cluster.connect(config.layout, config.local_server) as kube:
        return await cluster.make_token(kube, "for Macs that join", cluster.JOIN_TOKEN_HOURS)


async def _join_self(mac: Mac, config: HostConfig, pki: ClusterPki, kubelet: KubeletInstaller, kube: Kube) -> None:
    target = Cluster(BALANCED, pki.ca_hash)
    if kubelet.joined(config.name, target):
        return
    mac.step("kubelet", f"joining as Node {config.name}")
    token = await cluster.make_token(kube, f"for {config.name}", cluster.OWN_TOKEN_HOURS, config.name)
    try:
        # The Node exists with its label before the kubelet requests a certificate with an address of the API server.
        await asyncio.to_thread(kubelet.join, config.name, target, token, replace=True)
    finally:
        await cluster.remove_token(kube, token)


def join_line(config: HostConfig, token: str, ca_hash: str, key: bytes = b"") -> JoinLine:
    """The join line for other Macs, with this API server and the others of the cluster."""
    every = [one.host for one in (*own_servers(config), *disk.read(config.layout.api_servers))]
    addresses = tuple(dict.fromkeys(host for host in every if is_address(host)))[:ADDRESSES]
    names = tuple(dict.fromkeys(host for host in every if not is_address(host) and len(host) <= NAME_LENGTH))[:NAMES]
    return JoinLine(addresses, API_PORT, token, ca_hash, names, key)


def _farewell(mac: Mac, config: HostConfig, pki: ClusterPki, token: str) -> None:
    line = join_line(config, token, pki.ca_hash)
    tell_kubeconfig(mac)
    mac.tell("")
    mac.tell(f"On every other Mac, within {cluster.JOIN_TOKEN_HOURS} hours; keep the join line secret:")
    mac.tell("")
    # As an argument, every user of that Mac could read it in the process list.
    mac.tell(f"  echo {line.encode()} | sudo thunderfleet join -")


def tell_kubeconfig(mac: Mac) -> None:
    """Print how to use the control plane."""
    layout = mac.layout
    mac.tell("")
    mac.tell("The control plane runs, and starts again when this Mac boots. To use it as yourself:")
    mac.tell("")
    mac.tell(f"  mkdir -p ~/.kube && sudo cp {layout.admin_kubeconfig} ~/.kube/config && sudo chown $(id -u) ~/.kube/config")
    mac.tell(f"  export PATH=$PATH:{layout.control_plane_programs}")
