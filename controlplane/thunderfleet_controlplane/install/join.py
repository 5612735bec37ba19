"""`thunderfleet join`: makes this Mac a Node of a control plane on another Mac.

As `init`, it leaves what is already right, so running it again after an interruption completes it.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from thunderfleet_lib.kube import Kube

from thunderfleet_controlplane.components import server_url
from thunderfleet_controlplane.daemons.plan import KUBELET, label
from thunderfleet_controlplane.install.cluster import until_node_ready
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.joinline import JoinLine
from thunderfleet_controlplane.install.kubelet import Cluster, KubeletInstaller
from thunderfleet_controlplane.install.mac.daemons import why_not
from thunderfleet_controlplane.install.mac.facts import host_name
from thunderfleet_controlplane.install.mac.files import only_one, read_json
from thunderfleet_controlplane.install.mac.preflight import join_problems
from thunderfleet_controlplane.install.machine import Mac, refuse
from thunderfleet_controlplane.install.programs import put_python, python_environment


@dataclass(frozen=True)
class Wanted:
    """The command line."""

    line: JoinLine
    name: str | None = None
    kubelet_config: Path | None = None
    thunderbolt_ports: str | None = None


def join(mac: Mac, wanted: Wanted) -> None:
    """Join. Raises InstallError; running it again continues."""
    layout, line = mac.layout, wanted.line
    servers = tuple(server_url(address, line.port) for address in line.addresses)
    mac.step("preflight", "checking this Mac")
    facts = mac.facts((KUBELET,))
    name = wanted.name or str(facts.joined.get("name") or host_name())
    refuse(join_problems(facts, name, servers))
    with only_one(layout.lock):
        _install(mac, wanted, name, servers)


def _install(mac: Mac, wanted: Wanted, name: str, servers: tuple[str, ...]) -> None:
    mac.step("programs", "installing the programs")
    kubelet = _kubelet(mac)
    kubelet.write_config(name, wanted.kubelet_config, wanted.thunderbolt_ports)
    _join_one(mac, kubelet, name, [Cluster(server, wanted.line.ca_hash) for server in servers], wanted.line.token)
    _start(mac, kubelet, name)


def _kubelet(mac: Mac) -> KubeletInstaller:
    """The kubelet of the installation that runs this; copied if necessary."""
    layout = mac.layout
    python = put_python(layout, mac.shipped.digest, lambda part: mac.shipped.build(part, layout.programs))
    return KubeletInstaller(layout, mac.launchctl, python, python_environment(python))


def _start(mac: Mac, kubelet: KubeletInstaller, name: str) -> None:
    mac.step("kubelet", f"starting {label(KUBELET)}")
    asyncio.run(until_own_node_ready(mac, name, kubelet.start(mac.shipped.version)))
    mac.step("kubelet", f"this Mac is Node {name} and is Ready")


def start_kubelet(mac: Mac, name: str) -> None:
    """Run the kubelet of this version on a Mac that has joined. Raises InstallError."""
    mac.step("programs", "installing the programs")
    kubelet = _kubelet(mac)
    kubelet.write_config(name, None)
    _start(mac, kubelet, name)


def _join_one(mac: Mac, kubelet: KubeletInstaller, name: str, clusters: list[Cluster], token: str) -> None:
    """Join through the first address that answers. Raises InstallError with what all of them said."""
    if any(kubelet.joined(name, cluster) for cluster in clusters):
        return
    refusals = []
    for cluster in clusters:
        mac.step("kubelet", f"joining {cluster.server} as Node {name}")
        try:
            kubelet.join(name, cluster, token, replace=False)
        except InstallError as error:
            refusals.append(str(error))
            continue
        return
    raise InstallError("\n".join(refusals))


async def until_own_node_ready(mac: Mac, name: str, since: datetime) -> None:
    """Wait until this Mac's Node is Ready, asking as its own kubelet. Raises InstallError."""
    server = str(read_json(mac.layout.kubelet_state)["server"])
    identity = mac.layout.kubelet / "identity"
    client = identity / "client.pem"
    async with Kube.with_files(server, identity / "ca.crt", certificate=client, key=client) as kube:
        await until_node_ready(kube, name, since, lambda: why_not(mac.launchctl, mac.layout, KUBELET, label(KUBELET)))
