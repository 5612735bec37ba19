"""The folders and files of a Mac on which Thunderfleet is installed. Pure."""

from dataclasses import dataclass, replace
from pathlib import Path

from thunderfleet_lib.macnet.values import FILE_NAME

from thunderfleet_controlplane.pki_files import PkiFiles

SHARED = (
    *(f"pki/{name}.{end}" for name in ("ca", "front-proxy-ca", "etcd-ca") for end in ("crt", "key")),
    *("pki/service-accounts.key", "encryption.json"),
)
"""Files below ``HostLayout.control_plane`` that are the same on all Macs with a control plane. All other certificates are
issued on each of them."""


@dataclass(frozen=True)
class HostLayout:
    """All paths. ``version`` names the folder of the programs, so that several versions can be installed."""

    version: str
    programs_root: Path = Path("/opt/thunderfleet")
    data: Path = Path("/var/lib/thunderfleet")
    logs: Path = Path("/Library/Logs/Thunderfleet")
    daemons: Path = Path("/Library/LaunchDaemons")
    models: Path = Path("/Library/Thunderfleet/models")
    """The chart's agent.modelStore, unless another folder is set there."""

    @property
    def programs(self) -> Path:
        """A self-contained Python with all packages; it is also the image of this version's pods."""
        return self.programs_root / self.version

    @property
    def control_plane_programs(self) -> Path:
        """etcd, Kubernetes and Helm."""
        return self.programs_root / f"control-plane-{self.version}"

    @property
    def control_plane(self) -> Path:
        """Certificates, kubeconfigs and etcd's data; only root can enter it."""
        return self.data / "control-plane"

    @property
    def pki(self) -> PkiFiles:
        return PkiFiles(self.control_plane / "pki")

    @property
    def etcd(self) -> Path:
        return self.control_plane / "etcd"

    @property
    def encryption(self) -> Path:
        """The encryption configuration of Secrets in etcd. Without this file, a backup of etcd's data cannot be read."""
        return self.control_plane / "encryption.json"

    @property
    def state(self) -> Path:
        """The arguments of `thunderfleet init` (JSON)."""
        return self.control_plane / "init.json"

    @property
    def joining(self) -> Path:
        """The progress of `thunderfleet join --control-plane` (JSON), until it is complete."""
        return self.control_plane / "joining.json"

    @property
    def former(self) -> Path:
        """The control plane that `thunderfleet restore` replaced, until the restored one is Ready."""
        return self.data / "control-plane.former"

    @property
    def staged(self) -> "HostLayout":
        """The folder in which `thunderfleet restore` prepares a control plane while the present one runs."""
        return replace(self, data=self.data / "restoring")

    @property
    def former_version(self) -> Path:
        """The data that `thunderfleet upgrade` needs for a rollback, until the new version is healthy."""
        return self.data / "former-version"

    @property
    def before_upgrade(self) -> Path:
        """The backup that `thunderfleet upgrade` made of the control plane before it began."""
        return self.data / "before-upgrade.backup"

    @property
    def admin_kubeconfig(self) -> Path:
        """The administrator's kubeconfig; its server is the balancer of the Mac on which it is used."""
        return self.data / "admin.kubeconfig"

    @property
    def local_kubeconfig(self) -> Path:
        """The administrator's kubeconfig on this Mac, which works regardless of the Mac's address."""
        return self.data / "local.kubeconfig"

    @property
    def kubelet_config(self) -> Path:
        """The kubelet's configuration."""
        return self.data / "kubelet.yaml"

    @property
    def api_servers(self) -> Path:
        """The API servers of the cluster that this Mac last read (JSON)."""
        return self.data / "api-servers.json"

    @property
    def lock(self) -> Path:
        """Locked by the command that changes this installation."""
        return self.data / "install.lock"

    @property
    def kubelet(self) -> Path:
        """The kubelet's folder."""
        return self.data / "kubelet"

    @property
    def thunderbolt_ports(self) -> Path:
        """The kubelet's changes of this Mac's network settings (JSON)."""
        return self.kubelet / FILE_NAME

    @property
    def kubelet_state(self) -> Path:
        """The cluster that this Mac's kubelet joined (JSON)."""
        return self.data / "joined.json"

    @property
    def join_token(self) -> Path:
        """The bootstrap token of this Mac while it joins."""
        return self.data / "join-token"

    def plist(self, label: str) -> Path:
        """The property list of a daemon."""
        return self.daemons / f"{label}.plist"

    def log(self, name: str) -> Path:
        """The log of a daemon."""
        return self.logs / f"{name}.log"
