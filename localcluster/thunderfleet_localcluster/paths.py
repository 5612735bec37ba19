"""Where things lie on this machine, so that no other module decides it.

One folder a cluster holds all of its data (state), another one, shared by all clusters, holds what is expensive to make and
can be made again (cache). Root's own home is unreadable for the unprivileged user that containers run as, so root uses the
system's folders.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_localcluster.errors import LocalClusterError

DEFAULT_NAME = "thunderfleet"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def checked_name(name: str) -> str:
    """``name`` if a cluster may be called so. Raises LocalClusterError."""
    if not _NAME.fullmatch(name):
        raise LocalClusterError(
            f"cluster name {name!r}: use up to 40 lower-case letters, digits and '-', with a letter or digit at both ends",
            usage=True,
        )
    return name


def cache_folder() -> Path:
    """The folder of what can be made again: built programs, images."""
    if given := os.environ.get("THUNDERFLEET_CACHE"):
        return Path(given).absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/thunderfleet")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thunderfleet"


def state_folder() -> Path:
    """The folder that holds one folder a cluster, unless the user names another."""
    if os.geteuid() == 0:
        return Path("/var/lib/thunderfleet")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "thunderfleet"


@dataclass(frozen=True)
class ClusterFolder:
    """The places in one cluster's folder."""

    root: Path

    @classmethod
    def of(cls, name: str, directory: Path | None = None) -> "ClusterFolder":
        """The folder of the cluster ``name``: ``directory`` when given, else the default one."""
        return cls((directory or state_folder() / checked_name(name)).absolute())

    @property
    def state(self) -> Path:
        """What the running cluster is: addresses, machines, folders (JSON); gone when it is down."""
        return self.root / "cluster.json"

    @property
    def lock(self) -> Path:
        """Locked by the keeper for as long as it lives; holds its process id."""
        return self.root / "keeper.lock"

    @property
    def socket(self) -> Path:
        """Where the keeper listens for orders (a UNIX socket)."""
        return self.root / "keeper.sock"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig for the invoking user."""
        return self.root / "kubeconfig"

    @property
    def inner_kubeconfig(self) -> Path:
        """The administrator's kubeconfig for programs inside the cluster's own network."""
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
        """Weights that every machine of the cluster can read."""
        return self.root / "models"

    @property
    def machines(self) -> Path:
        return self.root / "machines"

    def machine(self, name: str) -> Path:
        return self.machines / name

    def log(self, program: str) -> Path:
        return self.logs / f"{program}.log"
