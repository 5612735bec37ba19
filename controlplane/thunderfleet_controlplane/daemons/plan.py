"""The daemons of a Mac's control plane, from one configuration. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thunderfleet_controlplane import components
from thunderfleet_controlplane.components import ETCD_NAME, Endpoints, Peering, Program, peer_url, server_url
from thunderfleet_controlplane.daemons.job import PREFIX, Daemon
from thunderfleet_controlplane.daemons.layout import HostLayout

API_PORT = 6443
LOCAL = "127.0.0.1"
ETCD_CLIENT, ETCD_PEER, CONTROLLER_MANAGER, SCHEDULER = 2379, 2380, 10257, 10259
KUBELET_PORT = 10250
BALANCER_PORT = 6444
"""Port of the balancer on 127.0.0.1 of every Mac."""
BALANCED = server_url(LOCAL, BALANCER_PORT)
"""The API server's URL for all programs on a Mac."""
APPROVER = "approver"
BALANCER = "balancer"
KUBELET = "kubelet"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = (BALANCER, KUBELET)
"""The daemons of a Mac without a control plane."""
ORDER = (*PROGRAMS, APPROVER, *NODE)
"""All daemons, in the order in which they are started; they end in the opposite order."""
INPUTS = {
    "etcd": ("pki/etcd.crt", "pki/etcd-ca.crt"),
    "kube-apiserver": (
        *("pki/ca.crt", "pki/apiserver.crt", "pki/apiserver-kubelet-client.crt", "pki/front-proxy-client.crt"),
        *("pki/etcd-client.crt", "pki/service-accounts.pub", "encryption.json"),
    ),
    "kube-controller-manager": ("pki/ca.crt", "pki/kube-controller-manager-serving.crt", "kube-controller-manager.kubeconfig"),
    "kube-scheduler": ("pki/kube-scheduler-serving.crt", "kube-scheduler.kubeconfig"),
    APPROVER: ("pki/ca.crt", "pki/approver.crt"),
}
"""The files below ``HostLayout.control_plane`` that each daemon reads when it starts."""
EXIT_SECONDS = {"etcd": 60, "kube-apiserver": 75}
"""Seconds that a daemon gets to exit. etcd writes its data; the API server lets requests end, up to its own limit of 60 s."""


@dataclass(frozen=True)
class HostConfig:
    """A Mac with a control plane. ``name``: name of its Node; ``address``: address of the API server for other machines."""

    name: str
    address: str
    layout: HostLayout
    names: tuple[str, ...] = ()
    """Further DNS names and addresses of the API server."""
    shared: bool = False
    """Whether other Macs have a control plane of this cluster too, or may get one."""
    etcd_name: str = ETCD_NAME
    etcd_initial: str = ""
    """All members of etcd when this one joined them (`Peering.initial`); empty if it began the cluster."""

    @property
    def peering(self) -> Peering | None:
        """How etcd finds the other members; None for a single member."""
        return Peering(self.etcd_name, self.address, self.etcd_initial) if self.shared else None

    @property
    def peer_url(self) -> str:
        """The URL of this Mac's etcd for other members."""
        return peer_url(self.address, ETCD_PEER)

    def state(self) -> dict[str, Any]:
        """The values that ``from_state`` reads."""
        found: dict[str, Any] = {"name": self.name, "address": self.address}
        if self.shared:
            found |= {"shared": True, "etcdName": self.etcd_name, "etcdInitial": self.etcd_initial}
        return found

    @property
    def endpoints(self) -> Endpoints:
        """The addresses on which programs listen: the API server on all, so that a change of an address does no harm."""
        anywhere = "::" if ":" in self.address else "0.0.0.0"
        return Endpoints(
            self.address, API_PORT, LOCAL, ETCD_CLIENT, ETCD_PEER, CONTROLLER_MANAGER, SCHEDULER, loopback=False, bind=anywhere
        )

    @property
    def server(self) -> str:
        """The API server's URL for other machines."""
        return server_url(self.address, API_PORT)

    @property
    def local_server(self) -> str:
        """The API server's URL on this Mac, regardless of the Mac's address."""
        return server_url(LOCAL, API_PORT)

    @property
    def server_names(self) -> tuple[str, ...]:
        """The addresses and DNS names in the API server's certificate."""
        return tuple(dict.fromkeys((LOCAL, "::1", "localhost", self.address, self.name, f"{self.name}.local", *self.names)))


def from_state(state: Mapping[str, object], layout: HostLayout, names: Sequence[str]) -> HostConfig:
    """The configuration of an earlier run, from its ``HostConfig.state``."""
    return HostConfig(
        str(state.get("name")),
        str(state.get("address")),
        layout,
        tuple(names),
        state.get("shared") is True,
        str(state.get("etcdName") or ETCD_NAME),
        str(state.get("etcdInitial") or ""),
    )


def ports(daemon: str) -> tuple[int, ...]:
    """The TCP ports that a daemon listens on."""
    return {
        "etcd": (ETCD_CLIENT, ETCD_PEER),
        "kube-apiserver": (API_PORT,),
        "kube-controller-manager": (CONTROLLER_MANAGER,),
        "kube-scheduler": (SCHEDULER,),
        BALANCER: (BALANCER_PORT,),
        KUBELET: (KUBELET_PORT,),
    }.get(daemon, ())


def label(daemon: str) -> str:
    """Launchd's name of a daemon."""
    return PREFIX + daemon


def daemons(config: HostConfig, inputs: Mapping[str, str], environment: Mapping[str, str], python: Path) -> tuple[Daemon, ...]:
    """The daemons of the control plane, in the order in which they are started, without those of every Mac.

    ``inputs``: for each a hash of the files that it reads only when it starts. ``python``: the folder of the Python with our
    packages, ``environment``: what it needs.
    """
    layout, at = config.layout, config.endpoints
    binaries, pki = layout.control_plane_programs, layout.pki

    programs = (
        components.etcd(binaries / "etcd", layout.etcd, pki, at, durable=True, peering=config.peering),
        components.api_server(binaries / "kube-apiserver", pki, at, encryption=layout.encryption),
        components.controller_manager(
            binaries / "kube-controller-manager",
            pki,
            layout.control_plane / "kube-controller-manager.kubeconfig",
            at,
            elect=config.shared,
        ),
        components.scheduler(
            binaries / "kube-scheduler", pki, layout.control_plane / "kube-scheduler.kubeconfig", at, elect=config.shared
        ),
    )
    approver = Daemon(
        APPROVER,
        (
            str(python / "bin" / "python3"),
            "-m",
            "thunderfleet_controlplane.install.approve",
            "--server",
            config.local_server,
            "--pki",
            str(pki.folder),
            "--address",
            config.address,
            *(f"--log={layout.log(name)}" for name in (*PROGRAMS, APPROVER)),
        ),
        layout.log(APPROVER),
        environment,
        # Nothing waits for it while its Mac boots. A join waits a little longer while this Mac is busy.
        nice=5,
    )
    every = (*(_program(config, one) for one in programs), approver)
    return tuple(replace(one, inputs=inputs.get(one.name, "")) for one in every)


def balancer(layout: HostLayout, environment: Mapping[str, str], python: Path, *, control_plane: bool, version: str) -> Daemon:
    """The daemon of the balancer. ``version``: version of its programs."""
    local = ("--local", server_url(LOCAL, API_PORT)) if control_plane else ()
    return Daemon(
        BALANCER,
        (
            *(str(python / "bin" / "python3"), "-m", "thunderfleet_controlplane.install.balance"),
            *("--listen", f"{LOCAL}:{BALANCER_PORT}", "--servers", str(layout.api_servers)),
            *("--identity", str(layout.kubelet / "identity"), "--log", str(layout.log(BALANCER)), *local),
        ),
        layout.log(BALANCER),
        environment,
        version,
        # Without the balancer, no program on this Mac reaches an API server.
        restart_seconds=1,
    )


def _program(config: HostConfig, program: Program) -> Daemon:
    return Daemon(
        program.name,
        program.argv,
        config.layout.log(program.name),
        program.env,
        exit_seconds=EXIT_SECONDS.get(program.name, 20),
    )
