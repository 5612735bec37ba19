"""`thunderfleet join`: makes this Mac a Node of a control plane on another Mac.

Like `init`, it changes only what is not yet right, so running it again after an interruption completes it.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from thunderfleet_lib.kube import Kube

from thunderfleet_controlplane.balancer.servers import ApiServer
from thunderfleet_controlplane.daemons.plan import BALANCED, KUBELET, NODE, label
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.joinline import JoinLine
from thunderfleet_controlplane.install.mac.daemons import why_not
from thunderfleet_controlplane.install.mac.facts import host_name
from thunderfleet_controlplane.install.mac.files import only_one, read_json
from thunderfleet_controlplane.install.mac.preflight import join_problems
from thunderfleet_controlplane.install.machine import Mac, refuse
from thunderfleet_controlplane.install.steps.access import find_ca, put_balancer
from thunderfleet_controlplane.install.steps.cluster import until_node_ready
from thunderfleet_controlplane.install.steps.kubelet import Cluster, KubeletInstaller
from thunderfleet_controlplane.install.steps.programs import put_python, python_environment


@dataclass(frozen=True)
class JoinOptions:
    """The command line."""

    line: JoinLine
    name: str | None = None
    kubelet_config: Path | None = None
    thunderbolt_ports: str | None = None


def join(mac: Mac, wanted: JoinOptions) -> None:
    """Join. Raises InstallError; running it again continues."""
    layout, line = mac.layout, wanted.line
    if line.key:
        raise InstallError("this line is for a Mac that gets a control plane: add --control-plane", usage=True)
    mac.step("preflight", "checking this Mac")
    facts = mac.facts(NODE)
    name = wanted.name or str(facts.joined.get("name") or host_name())
    refuse(join_problems(facts, name, line.ca_hash))
    with only_one(layout.lock):
        _install(mac, wanted, name)


def servers_of(line: JoinLine) -> tuple[ApiServer, ...]:
    """The API servers in a join line."""
    return tuple(ApiServer(host, line.port) for host in line.hosts)


def _install(mac: Mac, wanted: JoinOptions, name: str) -> None:
    mac.step("programs", "installing the programs")
    python, kubelet = _programs(mac)
    kubelet.write_config(name, wanted.kubelet_config, wanted.thunderbolt_ports, control_plane=False)
    servers, cluster = servers_of(wanted.line), Cluster(BALANCED, wanted.line.ca_hash)
    joined = kubelet.joined(name, cluster)
    if not joined:
        # The balancer would only report that no API server answers.
        find_ca(servers, wanted.line.ca_hash)
    put_balancer(mac, python, python_environment(python), servers, control_plane=False)
    if not joined:
        mac.step("kubelet", f"joining the cluster of {', '.join(map(str, servers))} as Node {name}")
        kubelet.join(name, cluster, wanted.line.token, replace=False)
    _start(mac, kubelet, name)


def _programs(mac: Mac) -> tuple[Path, KubeletInstaller]:
    """The folder of the Python to use, and its kubelet: the installation that runs this program, copied if necessary."""
    layout = mac.layout
    python = put_python(layout, mac.shipped.digest, lambda part: mac.shipped.build(part, layout.programs))
    return python, KubeletInstaller(layout, mac.launchctl, python, python_environment(python))


def _start(mac: Mac, kubelet: KubeletInstaller, name: str) -> None:
    mac.step("kubelet", f"starting {label(KUBELET)}")
    asyncio.run(until_own_node_ready(mac, name, kubelet.start(mac.shipped.version)))
    mac.step("kubelet", f"this Mac is Node {name} and is Ready")


def start_kubelet(mac: Mac, name: str) -> None:
    """Run the kubelet of this version on a Mac that has joined. Raises InstallError."""
    mac.step("programs", "installing the programs")
    python, kubelet = _programs(mac)
    kubelet.write_config(name, None, control_plane=False)
    put_balancer(mac, python, python_environment(python), (), control_plane=False)
    _start(mac, kubelet, name)


async def until_own_node_ready(mac: Mac, name: str, since: datetime) -> None:
    """Wait until this Mac's Node is Ready, with the credentials of its kubelet. Raises InstallError."""
    server = str(read_json(mac.layout.kubelet_state)["server"])
    identity = mac.layout.kubelet / "identity"
    client = identity / "client.pem"
    async with Kube.with_files(server, identity / "ca.crt", certificate=client, key=client) as kube:
        await until_node_ready(kube, name, since, lambda: why_not(mac.launchctl, mac.layout, KUBELET, label(KUBELET)))
