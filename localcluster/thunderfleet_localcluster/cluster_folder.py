"""The layout of one cluster's folder. Pure."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ClusterFolder:
    """Paths in the folder of one cluster."""

    root: Path

    @property
    def state(self) -> Path:
        """Addresses, machines and folders of the running cluster (JSON, mode 0600: it holds the proxy's token)."""
        return self.root / "cluster.json"

    @property
    def lock(self) -> Path:
        """Locked by the supervisor while it runs; holds its process ID."""
        return self.root / "supervisor.lock"

    @property
    def socket(self) -> Path:
        """UNIX socket on which the supervisor takes commands."""
        return self.root / "supervisor.sock"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig for the invoking user."""
        return self.root / "kubeconfig"

    @property
    def spec(self) -> Path:
        """The spec of the cluster that `thunderfleet local up` started (JSON)."""
        return self.root / "up.json"

    @property
    def inner_kubeconfig(self) -> Path:
        """The administrator's kubeconfig for programs in the network of the cluster."""
        return self.root / "control-plane" / "admin.kubeconfig"

    @property
    def control_plane(self) -> Path:
        return self.root / "control-plane"

    @property
    def pki(self) -> Path:
        return self.root / "control-plane" / "pki"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def models(self) -> Path:
        """Model folders that every machine of the cluster can read."""
        return self.root / "models"

    @property
    def machines(self) -> Path:
        return self.root / "machines"

    def machine(self, name: str) -> Path:
        """The folder of one machine."""
        return self.machines / name

    def log(self, program: str) -> Path:
        """The log file of a program."""
        return self.logs / f"{program}.log"
