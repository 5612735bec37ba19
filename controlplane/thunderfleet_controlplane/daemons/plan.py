"""The daemons of a Mac's control plane, from one configuration. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from thunderfleet_controlplane import components
from thunderfleet_controlplane.components import Endpoints, Program, server_url
from thunderfleet_controlplane.daemons.job import PREFIX, Daemon
from thunderfleet_controlplane.daemons.layout import HostLayout

API_PORT = 6443
LOCAL = "127.0.0.1"
ETCD_CLIENT, ETCD_PEER, CONTROLLER_MANAGER, SCHEDULER = 2379, 2380, 10257, 10259
KUBELET_PORT = 10250
APPROVER = "approver"
KUBELET = "kubelet"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
ORDER = (*PROGRAMS, APPROVER, KUBELET)
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
"""etcd writes what it has; the API server lets requests end, up to its own limit of 60 s."""


@dataclass(frozen=True)
class HostConfig:
    """A Mac with a control plane. ``name``: its Node's; ``address``: the API server's for other machines."""

    name: str
    address: str
    layout: HostLayout
    names: tuple[str, ...] = ()
    """Further DNS names and addresses of the API server."""

    @property
    def endpoints(self) -> Endpoints:
        """Where everything listens. The API server listens on all addresses, so it keeps working when one changes."""
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
        """The API server's URL on this Mac, whatever its address is."""
        return server_url(LOCAL, API_PORT)

    @property
    def server_names(self) -> tuple[str, ...]:
        """What the API server's certificate is for."""
        return tuple(dict.fromkeys((LOCAL, "::1", "localhost", self.address, self.name, f"{self.name}.local", *self.names)))


def ports(daemon: str) -> tuple[int, ...]:
    """The TCP ports that a daemon listens on."""
    return {
        "etcd": (ETCD_CLIENT, ETCD_PEER),
        "kube-apiserver": (API_PORT,),
        "kube-controller-manager": (CONTROLLER_MANAGER,),
        "kube-scheduler": (SCHEDULER,),
        KUBELET: (KUBELET_PORT,),
    }.get(daemon, ())


def label(daemon: str) -> str:
    """Launchd's name of a daemon."""
    return PREFIX + daemon


def daemons(config: HostConfig, inputs: Mapping[str, str], environment: Mapping[str, str], python: Path) -> tuple[Daemon, ...]:
    """The daemons of the control plane, in the order in which they are started; the kubelet writes its own property list.

    ``inputs``: for each a hash of the files that it reads only when it starts. ``python``: the folder of the Python with our
    packages, ``environment``: what it needs.
    """
    layout, at = config.layout, config.endpoints
    binaries, pki = layout.control_plane_programs, layout.pki

    programs = (
        components.etcd(binaries / "etcd", layout.etcd, pki, at, durable=True),
        components.api_server(binaries / "kube-apiserver", pki, at, encryption=layout.encryption),
        components.controller_manager(
            binaries / "kube-controller-manager", pki, layout.control_plane / "kube-controller-manager.kubeconfig", at
        ),
        components.scheduler(binaries / "kube-scheduler", pki, layout.control_plane / "kube-scheduler.kubeconfig", at),
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
    )
    every = (*(_program(config, one) for one in programs), approver)
    return tuple(replace(one, inputs=inputs.get(one.name, "")) for one in every)


def _program(config: HostConfig, program: Program) -> Daemon:
    return Daemon(
        program.name,
        program.argv,
        config.layout.log(program.name),
        program.env,
        exit_seconds=EXIT_SECONDS.get(program.name, 20),
    )
