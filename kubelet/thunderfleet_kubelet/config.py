"""The kubelet's configuration.

There are few settings, because the kubelet reads facts about the machine from the machine, and pods from the API server.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from thunderfleet_lib.macnet.subnets import DEFAULT_NETWORK

from thunderfleet_kubelet import pressure

MAX_NODE_NAME = 253


class ConfigError(ValueError):
    """The configuration is invalid."""


def text_of(file: Path) -> str:
    """The text of a configuration file. Raises ConfigError."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not a text file") from None


@dataclass(frozen=True)
class PodUsers:
    """The users and groups of pods: ``count`` ids from ``first``. No account of the machine may use one of them."""

    first: Annotated[int, Ge(1000), Le(2**31 - 2)] = 1_900_000_000
    """The first id."""
    count: Annotated[int, Ge(1), Le(1_000_000)] = 1000
    """The number of ids; at least maxPods."""

    @property
    def ids(self) -> range:
        """All ids."""
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class ImagePulls:
    """How images are pulled from registries, kept and deleted."""

    registries: list[str] = field(default_factory=lambda: ["*"])
    """The registries from which images are pulled. An entry is a host (with its port if the images' names have one), ``*.`` and
    the end of a host, one of these followed by ``/`` and the first parts of repositories, or ``*`` for all registries. An empty
    list disables pulls. A registry can lead the kubelet to another host with a private address (by a redirect, or for a token)
    only if an entry names that host."""
    plain_http: list[str] = field(default_factory=list)
    """Registries (host and port as in the images' names) that the kubelet contacts without TLS. It always contacts those on
    this machine (localhost, 127.0.0.0/8) without TLS. Content is verified by its digest, but others on the network can see user
    names and passwords, and can choose the image that a tag names."""
    ca_file: Path | None = None
    """A PEM file of certificate authorities that are trusted for registries, in addition to those of the system."""
    max_bytes: Annotated[int, Ge(1024**2), Le(2**44)] = 64 * 1024**3
    """The largest image, in bytes; its layers and its unpacked files are each limited to this."""
    high_threshold_percent: Annotated[int, Ge(1), Le(100)] = 85
    """Unused images are deleted when more than this percentage of their file system is used."""
    low_threshold_percent: Annotated[int, Ge(0), Le(100)] = 80
    """Unused images are deleted until no more than this percentage of their file system is used."""
    minimum_age_seconds: Annotated[int, Ge(0), Le(86400)] = 120
    """How long an image must be unused before it can be deleted."""


@dataclass(frozen=True)
class Config:
    """All settings; the file has these names in camelCase."""

    node_name: Annotated[str, MinLen(1), MaxLen(MAX_NODE_NAME)] = field(default_factory=lambda: default_node_name())
    """The Node's name. Default: the host name in lower case."""
    addresses: list[str] = field(default_factory=list)
    """The Node's InternalIPs; the kubelet's server listens on the first. Default: the address of the
    interface that reaches the API server or, if there is none, of the interface with the default route. When that address
    changes, the Node's address changes too."""
    port: Annotated[int, Ge(1), Le(65535)] = 10250
    """The port of the kubelet's server."""
    api_servers_file: Path | None = None
    """The file in which the balancer of this Mac keeps the addresses of the API servers. The kubelet connects to the balancer,
    so it needs these addresses to find the interface that reaches the API servers. `thunderfleet init` and `join` set it."""
    control_plane_certificates: Path | None = None
    """The folder with the certificates of the control plane on this Mac. The kubelet exports when they expire.
    `thunderfleet init` and `join` set it."""
    control_plane_components: bool = False
    """Whether the scheduler and the controller manager of a control plane run on this Mac. The kubelet then checks whether
    they work. `thunderfleet init` and `join` set it."""
    operating_system: Literal["darwin", "linux"] | None = None
    """The operating system that the Node reports. Default: ``darwin`` if the machine has ``sw_vers``. A local
    cluster on a Mac has Linux Nodes too."""
    path: list[Path] = field(default_factory=list)
    """Folders in front of PATH, for the kubelet's own commands and for every container."""
    python_path: list[Path] = field(default_factory=list)
    """PYTHONPATH of every container; unset if empty."""
    images: dict[str, Path] = field(default_factory=dict)
    """Folder of each image, by the image's name exactly as in a pod (name:tag). Containers find their programs in ``bin`` below
    it; ``config.json``, if there is one, is the ``config`` object of an OCI image. The kubelet has the image
    thunderfleet/thunderfleet of its own version without an entry."""
    image_pulls: ImagePulls = ImagePulls()
    """How images are pulled. Only images that are not in ``images``, and whose names have a registry
    (registry.example.com/name:tag), are pulled."""
    pod_users: PodUsers = PodUsers()
    """The users and groups of pods: each pod has one of its own. No account of the machine may have one of these ids. Only a
    kubelet that runs as root uses them."""
    thunderbolt_ports: Literal["Managed", "Unmanaged"] = "Managed"
    """Managed: each Thunderbolt port of a Mac gets a network service and an address of its own, and leaves the Thunderbolt
    Bridge, in which RDMA does not work. Unmanaged: changes made for this are undone. Only a kubelet that runs as root
    manages ports."""
    cable_network: ipaddress.IPv4Network = DEFAULT_NETWORK
    """The network from which cables between Macs get their addresses, a /30 each. It must be the same on all Macs, and free."""
    labels: dict[str, str] = field(default_factory=dict)
    """Additional labels of the Node."""
    max_pods: Annotated[int, Ge(1), Le(1000)] = 110
    """Maximum number of pods on the node."""
    node_status_seconds: Annotated[int, Ge(1), Le(3600)] = 10
    """Interval between checks of the machine. The Node's status is written when it changes, and once a day."""
    lease_seconds: Annotated[int, Ge(4), Le(3600)] = 40
    """The duration of the Lease in seconds; the kubelet renews it after a quarter of that."""
    certificate_seconds: Annotated[int, Ge(600), Le(315_360_000)] = 31_536_000
    """The requested lifetime of certificates; the cluster may shorten it. They are renewed after 80 % of it."""
    eviction_hard: dict[str, str] = field(default_factory=dict)
    """Thresholds that cause DiskPressure and evictions, by signal (``nodefs.available``, ``imagefs.available``,
    ``nodefs.inodesFree``, ``imagefs.inodesFree``): a percentage or a quantity; ``0%`` disables one. Signals that are not named
    keep the defaults of Kubernetes."""
    eviction_pressure_transition_seconds: Annotated[int, Ge(0), Le(86400)] = 300
    """How long DiskPressure stays after free space is above all thresholds again."""
    container_log_max_size: str = "10Mi"
    """The size at which a container's log is rotated."""
    container_log_max_files: Annotated[int, Ge(2), Le(100)] = 5
    """Maximum number of files of a container's log."""
    reserved_memory_bytes: Annotated[int, Ge(0)] = 0
    """Memory that is not allocatable to pods."""
    reserved_cpu_millis: Annotated[int, Ge(0)] = 0
    """Millicores that are not allocatable to pods."""

    shutdown_grace_period_seconds: Annotated[int, Ge(0), Le(3600)] = 0
    """How long pods get to end when the machine shuts down: pods of ordinary priority first, critical ones after them. 0: the
    kubelet leaves them to the system. A pod that ended this way has failed, with the reason Terminated, and its controller
    creates another one."""
    shutdown_grace_period_critical_pods_seconds: Annotated[int, Ge(0), Le(3600)] = 0
    """The part of shutdownGracePeriodSeconds that critical pods get."""

    @property
    def thresholds(self) -> tuple[pressure.Threshold, ...]:
        """The eviction thresholds."""
        return pressure.thresholds(self.eviction_hard)


def default_node_name() -> str:
    """The host name without its local domain, in lower case: ``Annes-Studio.local`` becomes ``annes-studio``."""
    name = socket.gethostname().lower()
    for suffix in (".local", ".lan"):
        name = name.removesuffix(suffix)
    return re.sub(r"[^-.a-z0-9]+", "-", name).strip("-.") or "localhost"
