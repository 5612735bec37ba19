"""`thunderfleet join --control-plane`: gives this Mac a control plane of an existing cluster.

The order is: the keys of the cluster, then a member of etcd without a vote, which gets one when it has all data, then the steps
of `init`. Each step changes only what is not yet right, so running this again after an interruption completes it.
"""

import asyncio
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from thunderfleet_lib.net import tls

from thunderfleet_controlplane.daemons.plan import BALANCED, ORDER, HostConfig, from_state
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.init import InitOptions, install, tell_kubeconfig
from thunderfleet_controlplane.install.join import servers_of
from thunderfleet_controlplane.install.joinline import JoinLine
from thunderfleet_controlplane.install.mac.facts import default_address, host_name, other_names
from thunderfleet_controlplane.install.mac.files import make_folder, only_one, read_json, remove, write_json
from thunderfleet_controlplane.install.mac.preflight import member_problems
from thunderfleet_controlplane.install.machine import Mac, refuse
from thunderfleet_controlplane.install.peers.members import Etcd
from thunderfleet_controlplane.install.peers.quorum import initial_cluster, why_not_without, with_url
from thunderfleet_controlplane.install.peers.settle import has_data, settle, until
from thunderfleet_controlplane.install.sharing import handover
from thunderfleet_controlplane.install.sharing.sealed import SealedError, unseal
from thunderfleet_controlplane.install.steps import chart, cluster
from thunderfleet_controlplane.install.steps.access import find_ca, put_balancer
from thunderfleet_controlplane.install.steps.certificates import own_ca_hash, put_certificates
from thunderfleet_controlplane.install.steps.programs import put_python, python_environment

CLAIM_BYTES = 16
REMOVE = "if that Mac does not continue, run `sudo thunderfleet reset --member {}` on a Mac with a control plane"


@dataclass(frozen=True)
class JoinControlPlaneOptions:
    """The command line."""

    line: JoinLine
    name: str | None = None
    address: str | None = None
    kubelet_config: Path | None = None
    thunderbolt_ports: str | None = None


def join(mac: Mac, wanted: JoinControlPlaneOptions) -> None:
    """Join. Raises InstallError; running it again continues."""
    layout, line = mac.layout, wanted.line
    if not line.key:
        raise InstallError(
            "this line is for Macs without a control plane: leave out --control-plane, or use the line that `sudo thunderfleet "
            "token create --control-plane` prints on a Mac with a control plane",
            usage=True,
        )
    mac.step("preflight", "checking this Mac")
    facts = mac.facts(ORDER)
    name = wanted.name or str(facts.initialised.get("name") or facts.joined.get("name") or host_name())
    known = facts.initialised.get("address")
    address = wanted.address or (str(known) if known in facts.addresses else default_address(mac.host))
    refuse(member_problems(facts, name, address, line.ca_hash, own_ca_hash(layout)))
    with only_one(layout.lock):
        # member_problems has checked that this is an address.
        _join(mac, wanted, HostConfig(name, str(address), layout, other_names(), shared=True, etcd_name=f"member-{name}"))


def _join(mac: Mac, wanted: JoinControlPlaneOptions, config: HostConfig) -> None:
    layout, line = mac.layout, wanted.line
    mac.step("programs", "installing the programs")
    # Done before the line is used: it may take long, and the line is valid for two hours only.
    mac.shipped.find_programs()
    python = put_python(layout, mac.shipped.digest, lambda part: mac.shipped.build(part, layout.programs))
    for folder, mode in ((layout.data, 0o755), (layout.control_plane, 0o700), (layout.pki.folder, 0o700)):
        make_folder(folder, mode)
    if not layout.joining.exists():
        write_json(layout.joining, {"claim": secrets.token_hex(CLAIM_BYTES), "token": line.token.split(".")[0]})
    put_balancer(mac, python, python_environment(python), servers_of(line), control_plane=True)
    _get_keys(mac, line)
    put_certificates(config)
    asyncio.run(_withdraw(mac, line))
    etcd = Etcd(layout.pki, line.hosts)
    config = _member(mac, config, etcd)
    init = InitOptions(kubelet_config=wanted.kubelet_config, thunderbolt_ports=wanted.thunderbolt_ports, chart=False)
    install(mac, init, config, lambda mac, config: settle(mac, config, etcd))
    voters = len([one for one in etcd.members() if not one.learner])
    chart.follow_control_planes(mac, mac.shipped.chart(python), voters - 1, voters)
    remove(layout.joining)
    _farewell(mac, voters)


def _get_keys(mac: Mac, line: JoinLine) -> None:
    """Get the keys of the cluster, unless an earlier run has got them. Raises InstallError."""
    layout = mac.layout
    state = read_json(layout.joining)
    if state.get("keys"):
        return
    mac.step("keys", "getting the keys of the cluster")
    trusted = layout.control_plane / "joining-ca.crt"
    tls.write_private(trusted, find_ca(servers_of(line), line.ca_hash))
    token = line.token.split(".")[0]
    try:
        data = asyncio.run(handover.take(BALANCED, trusted, line.token, str(state["claim"])))
        files, version = unseal(data, key=line.key, token=token)
    except SealedError as error:
        raise InstallError(f"the keys in the cluster cannot be read: {error}: {handover.AGAIN}") from None
    if version != mac.shipped.version:
        raise InstallError(
            f"the control plane has version {version}, and this is {mac.shipped.version}: install {version}, and run this again"
        )
    for name, content in files.items():
        tls.write_private(layout.control_plane / name, content)
    if own_ca_hash(layout) != line.ca_hash:
        raise InstallError(f"the keys are those of another cluster: {handover.AGAIN}")
    remove(trusted)
    write_json(layout.joining, {**state, "token": token, "keys": True})


async def _withdraw(mac: Mac, line: JoinLine) -> None:
    """Delete the used token and the objects that it can read. An earlier run may have used another line."""
    identifiers = {str(read_json(mac.layout.joining).get("token")), line.token.split(".")[0]}
    mac.step("keys", "deleting the keys in the cluster, and the token of the line")
    async with cluster.connect(mac.layout, BALANCED) as kube:

        async def problem() -> str:
            for one in identifiers:
                await handover.withdraw(kube, one)
            return ""

        await cluster.until(problem, cluster.NODE_SECONDS, "the token cannot be deleted", lambda: "")


def _member(mac: Mac, config: HostConfig, etcd: Etcd) -> HostConfig:
    """Add this Mac to etcd unless it is a member. Returns the configuration with all members. Raises InstallError."""
    layout, url = config.layout, config.peer_url
    if has_data(layout):
        earlier = from_state(read_json(layout.state), layout, config.names)
        return replace(config, etcd_name=earlier.etcd_name, etcd_initial=earlier.etcd_initial)
    remove(layout.etcd)
    mac.step("etcd", f"adding {config.etcd_name} at {url}, without a vote at first")
    found: list[str] = []

    def step() -> str:
        members = etcd.members()
        mine = with_url(members, url)
        if mine is not None and mine.name:
            # A member of an earlier control plane on this Mac whose data is lost.
            if problem := why_not_without(members, mine, etcd.alive(members)):
                return f"the earlier {mine} cannot be replaced: {problem}"
            etcd.remove(mine)
            mine = None
        if mine is None:
            if other := next((one for one in members if one.learner), None):
                return f"{other} is joining; {REMOVE.format(next(iter(other.hosts), other.name))}"
            etcd.add_learner(url)
        found[:] = [initial_cluster(etcd.members(), config.etcd_name, url)]
        return ""

    until(step, lambda: "")
    return replace(config, etcd_initial=found[0])


def _farewell(mac: Mac, voters: int) -> None:
    mac.tell("")
    mac.tell(f"The cluster has {voters} control planes.")
    if voters % 2 == 0:
        # More than half of the members must work.
        lost = (voters - 1) // 2
        survive = f"survive the loss of {lost}, as {voters - 1} do" if lost else "do not survive the loss of one"
        again = "join one more Mac, with the join line of another `sudo thunderfleet token create --control-plane`"
        mac.tell(f"WARNING: {voters} control planes {survive}: {again}")
    tell_kubeconfig(mac)
