"""`thunderfleet token create`: prints a line for another Mac, with or without a control plane."""

import asyncio
import secrets
from dataclasses import replace

from thunderfleet_controlplane.daemons.layout import SHARED
from thunderfleet_controlplane.daemons.plan import ORDER, HostConfig, from_state
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.init import InitOptions, install, join_line
from thunderfleet_controlplane.install.joinline import KEY_BYTES
from thunderfleet_controlplane.install.mac.facts import other_names
from thunderfleet_controlplane.install.mac.files import only_one
from thunderfleet_controlplane.install.mac.preflight import init_problems
from thunderfleet_controlplane.install.machine import Mac, refuse
from thunderfleet_controlplane.install.sharing import handover
from thunderfleet_controlplane.install.sharing.sealed import seal
from thunderfleet_controlplane.install.steps import cluster
from thunderfleet_controlplane.install.steps.certificates import own_ca_hash

HOURS = 2


def create(mac: Mac, *, control_plane: bool) -> None:
    """Print a line. Raises InstallError; running it again continues, and prints another."""
    mac.step("preflight", "checking this Mac")
    facts = mac.facts(ORDER)
    if facts.root and not facts.initialised:
        raise InstallError("this Mac has no control plane: run this on a Mac that has one")
    config = from_state(facts.initialised, mac.layout, other_names())
    if facts.root and config.address not in facts.addresses:
        raise InstallError(f"the address of this Mac is no longer {config.address}: run `sudo thunderfleet init` first")
    refuse(init_problems(facts, config.name, config.address))
    with only_one(mac.layout.lock):
        if control_plane:
            config = replace(config, shared=True)
            # Opens etcd to members on other Macs, and enables leader election of controller manager and scheduler.
            install(mac, InitOptions(chart=False), config)
        line = asyncio.run(_make(mac, config, control_plane=control_plane))
    mac.tell("")
    hours = HOURS if control_plane else cluster.JOIN_TOKEN_HOURS
    if control_plane:
        mac.tell(f"On one other Mac, within {hours} hours. The line gives it all keys of the cluster; keep it secret:")
    else:
        mac.tell(f"On every other Mac, within {hours} hours; keep the line secret:")
    mac.tell("")
    mac.tell(f"  echo {line} | sudo thunderfleet join {'--control-plane ' * control_plane}-")


async def _make(mac: Mac, config: HostConfig, *, control_plane: bool) -> str:
    layout = mac.layout
    ca_hash = own_ca_hash(layout)
    if ca_hash is None:
        raise InstallError(f"{layout.pki.ca} cannot be read: `sudo thunderfleet init` shows what is missing")
    async with cluster.connect(layout, config.local_server) as kube:
        if not control_plane:
            token = await cluster.make_token(kube, "for Macs that join", cluster.JOIN_TOKEN_HOURS)
            return join_line(config, token, ca_hash).encode()
        key = secrets.token_bytes(KEY_BYTES)
        token = await cluster.make_token(kube, "for one Mac that gets a control plane", HOURS)
        files = {name: (layout.control_plane / name).read_bytes() for name in SHARED}
        data = seal(files, mac.shipped.version, key=key, token=token.split(".")[0], random=secrets.token_bytes)
        await handover.offer(kube, token, data)
        return join_line(config, token, ca_hash, key).encode()
