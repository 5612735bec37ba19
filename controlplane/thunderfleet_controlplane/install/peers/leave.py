"""Removes a control plane from a cluster: that of this Mac, or of a Mac that does not come back."""

import asyncio
from dataclasses import dataclass

from thunderfleet_lib.kube import ApiError

from thunderfleet_controlplane.balancer import disk
from thunderfleet_controlplane.balancer.servers import CONFIG_MAP
from thunderfleet_controlplane.daemons.plan import LOCAL, from_state
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.facts import addresses
from thunderfleet_controlplane.install.mac.files import read_json
from thunderfleet_controlplane.install.machine import Mac
from thunderfleet_controlplane.install.peers.members import Etcd, EtcdError
from thunderfleet_controlplane.install.peers.quorum import Member, voters, why_not_now, why_not_without
from thunderfleet_controlplane.install.peers.settle import until
from thunderfleet_controlplane.install.steps import cluster

LOST = (
    "Switch them on, and run this again. If they do not come back, make this Mac the only control plane: `sudo thunderfleet "
    "backup FILE`, then `sudo thunderfleet restore FILE`, which keeps all data of this Mac"
)
FORCE = "`--force` removes what is on this Mac anyway"


@dataclass(frozen=True)
class Leaving:
    """A member that can be removed, and the etcd that can remove it. ``left``: number of voting members afterwards."""

    etcd: Etcd
    member: Member
    left: int = 0


def leaving(mac: Mac) -> Leaving | None:
    """The member of this Mac if there are others; None if etcd need not be informed.

    Raises InstallError if the other members would not work without it, or if that is unknown.
    """
    layout = mac.layout
    if not layout.pki.pair("etcd-client").certificate.exists():
        return None
    if not layout.joining.exists() and read_json(layout.state).get("shared") is not True:
        return None
    etcd = Etcd(layout.pki, (one.host for one in disk.read(layout.api_servers)))
    try:
        members = etcd.members()
    except EtcdError as error:
        raise InstallError(
            f"this Mac cannot be removed from etcd: {_why(etcd, error)}. Switch the other Macs on, and run this "
            f"again. {FORCE}; then run `sudo thunderfleet reset --member NODE` on another of these Macs, once more than half "
            "of them work"
        ) from None
    own = set(addresses(mac.host)) - {LOCAL, "::1"}
    mine = next((one for one in members if own & set(one.hosts)), None)
    if mine is None or members == (mine,):
        return None
    if problem := why_not_without(members, mine, etcd.alive(members)):
        raise InstallError(
            f"without this Mac the others would not work: {problem}. Switch them on, or remove one that does not come back "
            f"with `sudo thunderfleet reset --member NODE`. {FORCE}"
        )
    return Leaving(etcd, mine, voters(members, mine))


def forget_own(mac: Mac) -> None:
    """Delete this Mac's entries in the cluster: its API server, and its Node."""
    # A Mac that has not completed joining has neither.
    if (name := read_json(mac.layout.state).get("name")) is not None:
        _forget(mac, str(name))


def leave(mac: Mac, one: Leaving) -> None:
    """Remove this Mac from the members of etcd. Raises InstallError."""
    mac.step("reset", f"removing {one.member} from etcd")

    def step() -> str:
        # A lost answer is no reason to fail.
        if any(member.id == one.member.id for member in one.etcd.members()):
            one.etcd.remove(one.member)
        return ""

    until(step, lambda: "")


def remove_member(mac: Mac, node: str, *, force: bool) -> int:
    """Remove the control plane of another Mac, which does not come back. Returns the number left. Raises InstallError."""
    layout = mac.layout
    config = from_state(read_json(layout.state), layout, ())
    if node == config.name:
        raise InstallError("this is the control plane of this Mac: leave out --member to remove it", usage=True)
    etcd = Etcd(layout.pki, (one.host for one in disk.read(layout.api_servers)))
    try:
        members = etcd.members()
        known = set(asyncio.run(_where(mac, node)).split())
    except EtcdError as error:
        raise InstallError(f"the control plane of {node} cannot be removed: {_why(etcd, error)}. {LOST}") from None
    except (ApiError, OSError) as error:
        raise InstallError(
            f"the control plane of {node} cannot be removed: the API server of this Mac does not answer: {error}. `sudo "
            f"launchctl print system/io.thunderfleet.kube-apiserver` and {layout.log('kube-apiserver')} show why"
        ) from None
    # A member that has never started has no name yet.
    hosts = {*known, node}
    found = next((one for one in members if one.name == f"member-{node}" or hosts & set(one.hosts)), None)
    if found is not None:
        alive = etcd.alive(members)
        if found.id in alive and not force:
            raise InstallError(f"the control plane of {node} works: run `sudo thunderfleet reset` there, or use --force")
        if problem := why_not_without(members, found, alive):
            raise InstallError(
                f"{found} cannot be removed: {problem}. Switch them on, or first remove one that does not come back"
            )
        mac.step("reset", f"removing {found} from etcd")
        etcd.remove(found)
    elif not known:
        raise InstallError(f"no control plane is known by the name {node}: use the name of its Node", usage=True)
    _forget(mac, node)
    mac.step(
        "reset",
        f"{node} no longer has a control plane; if that Mac comes back, run `sudo thunderfleet reset --force` on it before it "
        "is connected to the network again",
    )
    return voters(members, found)


def _why(etcd: Etcd, error: EtcdError) -> str:
    """Why etcd cannot change anything: members that do not answer, or else its error."""
    try:
        # From this Mac's etcd alone, which needs no other member.
        members = etcd.members(consistent=False)
    except EtcdError:
        return f"the etcd of this Mac does not answer ({error})"
    return why_not_now(members, etcd.alive(members)) or str(error)


async def _where(mac: Mac, node: str) -> str:
    async with cluster.connect(mac.layout, _local(mac)) as kube:
        known = await kube.get_or_none(CONFIG_MAP) or {}
    return str((known.get("data") or {}).get(node) or "")


def _forget(mac: Mac, node: str) -> None:
    """Delete the entry of a Mac's API server, and its Node, if an API server answers."""

    async def forget() -> None:
        async with cluster.connect(mac.layout, _local(mac)) as kube:
            await cluster.forget_api_servers(kube, [node])
            await cluster.remove_node(kube, node)

    try:
        asyncio.run(forget())
    except (ApiError, OSError) as error:
        mac.step("reset", f"not removed: Node {node}; remove it with `kubectl delete node {node}` ({error})")


def _local(mac: Mac) -> str:
    return from_state(read_json(mac.layout.state), mac.layout, ()).local_server
