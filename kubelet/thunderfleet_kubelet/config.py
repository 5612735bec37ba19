"""The kubelet's configuration: one YAML file. Errors name the file, the key and what is allowed.

There are few settings, because the kubelet reads facts about the machine from the machine, and pods from the API server.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel
from thunderfleet_lib.macnet.subnets import DEFAULT_NETWORK

from thunderfleet_kubelet import pressure

NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_NODE_NAME = 253
# NodeRestriction lets a node set only labels with these prefixes in kubernetes.io; others are free.
RESERVED_LABEL_DOMAINS = ("kubernetes.io", "k8s.io")
FREE_LABEL_PREFIXES = ("kubelet.kubernetes.io/", "node.kubernetes.io/")


class ConfigError(ValueError):
    """The configuration is invalid."""


class _Settings(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", validate_default=False
    )


class PodUsers(_Settings):
    """The users and groups of pods: ``count`` ids from ``first``. No account of the machine may have one of them."""

    first: Annotated[int, Field(ge=1000, le=2**31 - 2)] = 1_900_000_000
    """The first id."""
    count: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """The number of ids; at least maxPods."""

    @property
    def ids(self) -> range:
        """All ids."""
        return range(self.first, self.first + self.count)

    @model_validator(mode="after")
    def _fits(self) -> "PodUsers":
        if self.ids.stop > 2**31:
            raise ValueError(f"first + count must be at most {2**31}, not {self.ids.stop}")
        return self


class ImagePulls(_Settings):
    """How images are pulled from registries, kept and deleted."""

    registries: list[str] = ["*"]
    """The registries from which images are pulled. An entry is a host (with its port if the images' names have one), ``*.`` and
    the end of a host, one of these followed by ``/`` and the first parts of repositories, or ``*`` for all registries. An empty
    list turns pulls off."""
    plain_http: list[str] = []
    """Registries (host and port as in the images' names) that the kubelet contacts without TLS. It always contacts those on
    this machine (localhost, 127.0.0.0/8) without TLS. Content is verified by its digest, but others on the network can see user
    names and passwords, and can choose the image that a tag names."""
    ca_file: Path | None = None
    """A PEM file of certificate authorities that are trusted for registries, beside those of the system."""
    max_bytes: Annotated[int, Field(ge=1024**2, le=2**44)] = 64 * 1024**3
    """The largest image, in bytes; its layers and its unpacked files are each limited to this."""
    high_threshold_percent: Annotated[int, Field(ge=1, le=100)] = 85
    """Unused images are deleted when more than this percentage of their file system is used."""
    low_threshold_percent: Annotated[int, Field(ge=0, le=100)] = 80
    """Unused images are deleted until no more than this percentage of their file system is used."""
    minimum_age_seconds: Annotated[int, Field(ge=0, le=86400)] = 120
    """How long an image must be unused before it can be deleted."""

    @field_validator("registries", "plain_http")
    @classmethod
    def _hosts(cls, value: list[str]) -> list[str]:
        for text in value:
            if not text or "://" in text or any(one.isspace() for one in text):
                raise ValueError(f"{text!r} must be a registry as in the names of images, such as registry.example.com:5000")
        return value

    @field_validator("ca_file")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError(f"{str(value)!r} must be an absolute path")
        return value

    @model_validator(mode="after")
    def _ordered(self) -> "ImagePulls":
        if self.low_threshold_percent >= self.high_threshold_percent:
            raise ValueError("lowThresholdPercent must be less than highThresholdPercent")
        return self


class Config(_Settings):
    """All settings; the file has these names in camelCase."""

    node_name: Annotated[str, Field(min_length=1, max_length=MAX_NODE_NAME)] = Field(
        default_factory=lambda: default_node_name()
    )
    """The Node's name. Default: the host name in lower case."""
    addresses: list[str] = []
    """The Node's InternalIPs; the kubelet's server listens on the first. Default: the address of the
    interface that reaches the API server or, if there is none, of the interface with the default route. When that address
    changes, the Node's address changes too."""
    port: Annotated[int, Field(ge=1, le=65535)] = 10250
    """The port of the kubelet's server."""
    api_servers_file: Path | None = None
    """The file in which the balancer of this Mac keeps the addresses of the API servers. The kubelet connects to the balancer,
    so it needs these addresses to find the interface that reaches the API servers. `thunderfleet init` and `join` set it."""
    control_plane_certificates: Path | None = None
    """The folder with the certificates of the control plane on this Mac. The kubelet exports when they expire.
    `thunderfleet init` and `join` set it."""
    control_plane_components: bool = False
    """Whether the scheduler and the controller manager of a control plane run on this Mac. The kubelet then asks them whether
    they work. `thunderfleet init` and `join` set it."""
    operating_system: Literal["darwin", "linux"] | None = None
    """The operating system that the Node reports. Default: ``darwin`` if the machine has ``sw_vers``. A local
    cluster on a Mac has Linux Nodes too."""
    path: list[Path] = []
    """Folders in front of PATH, for the kubelet's own commands and for every container."""
    python_path: list[Path] = []
    """PYTHONPATH of every container; unset if empty."""
    images: dict[str, Path] = {}
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
    Bridge, in which RDMA does not work. Unmanaged: what was changed for this is undone. Only a kubelet that runs as root
    manages ports."""
    cable_network: ipaddress.IPv4Network = DEFAULT_NETWORK
    """The network from which cables between Macs get their addresses, a /30 each. It must be the same on all Macs, and free."""
    labels: dict[str, str] = {}
    """Additional labels of the Node."""
    max_pods: Annotated[int, Field(ge=1, le=1000)] = 110
    """Maximum number of pods on the node."""
    node_status_seconds: Annotated[int, Field(ge=1, le=3600)] = 10
    """Interval between checks of the machine. The Node's status is written when it changes, and once a day."""
    lease_seconds: Annotated[int, Field(ge=4, le=3600)] = 40
    """The duration of the Lease in seconds; the kubelet renews it after a quarter of that."""
    certificate_seconds: Annotated[int, Field(ge=600, le=315_360_000)] = 31_536_000
    """The requested lifetime of certificates; the cluster may shorten it. They are renewed after 80 % of it."""
    eviction_hard: dict[str, str] = {}
    """Thresholds that cause DiskPressure and evictions, by signal (``nodefs.available``, ``imagefs.available``,
    ``nodefs.inodesFree``, ``imagefs.inodesFree``): a percentage or a quantity; ``0%`` turns one off. Signals that are not named
    keep the defaults of Kubernetes."""
    eviction_pressure_transition_seconds: Annotated[int, Field(ge=0, le=86400)] = 300
    """How long DiskPressure stays after free space is above all thresholds again."""
    container_log_max_size: str = "10Mi"
    """The size at which a container's log is rotated."""
    container_log_max_files: Annotated[int, Field(ge=2, le=100)] = 5
    """Maximum number of files of a container's log."""
    reserved_memory_bytes: Annotated[int, Field(ge=0)] = 0
    """Memory that is not allocatable to pods."""
    reserved_cpu_millis: Annotated[int, Field(ge=0)] = 0
    """Millicores that are not allocatable to pods."""

    shutdown_grace_period_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    """How long pods get to end when the machine shuts down: pods of ordinary priority first, critical ones after them. 0: the
    kubelet leaves them to the system. A pod that ended this way has failed, with the reason Terminated, and its controller
    creates another one."""
    shutdown_grace_period_critical_pods_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    """The part of shutdownGracePeriodSeconds that critical pods get."""

    @field_validator("node_name")
    @classmethod
    def _node_name(cls, value: str) -> str:
        if not NODE_NAME.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a valid node name; use lower-case letters, digits, '-' and '.', such as 'studio-1'"
            )
        return value

    @field_validator("addresses")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        for text in value:
            try:
                address = ipaddress.ip_address(text)
            except ValueError:
                raise ValueError(f"{text!r} is not an IP address, such as '192.168.64.11'") from None
            if address.is_unspecified or address.is_multicast:
                raise ValueError(f"{text} is not a unicast address; use the machine's own address")
        return value

    @field_validator("cable_network")
    @classmethod
    def _cable_network(cls, value: ipaddress.IPv4Network) -> ipaddress.IPv4Network:
        if not value.is_private or value.is_loopback or value.is_link_local or not 8 <= value.prefixlen <= 20:
            raise ValueError(f"{value} must be a private network from /8 to /20, such as {DEFAULT_NETWORK}")
        return value

    @field_validator("path", "python_path")
    @classmethod
    def _folders(cls, value: list[Path]) -> list[Path]:
        for folder in value:
            if not folder.is_absolute():
                raise ValueError(f"{str(folder)!r} must be an absolute path")
        return value

    @field_validator("images")
    @classmethod
    def _images(cls, value: dict[str, Path]) -> dict[str, Path]:
        for image, folder in value.items():
            if not folder.is_absolute():
                raise ValueError(f"{image!r}: {str(folder)!r} must be an absolute path")
        return value

    @model_validator(mode="after")
    def _enough_users(self) -> "Config":
        if self.pod_users.count < self.max_pods:
            raise ValueError(f"podUsers.count is {self.pod_users.count}; it must be at least maxPods, {self.max_pods}")
        return self

    @model_validator(mode="after")
    def _shutdown_periods(self) -> "Config":
        critical, whole = self.shutdown_grace_period_critical_pods_seconds, self.shutdown_grace_period_seconds
        if critical > whole:
            raise ValueError(
                f"shutdownGracePeriodCriticalPodsSeconds is {critical}; it must be at most shutdownGracePeriodSeconds, {whole}"
            )
        return self

    @field_validator("eviction_hard")
    @classmethod
    def _eviction_hard(cls, value: dict[str, str]) -> dict[str, str]:
        pressure.thresholds(value)
        return value

    @field_validator("container_log_max_size")
    @classmethod
    def _log_size(cls, value: str) -> str:
        from thunderfleet_lib.quantity import to_bytes

        if not 64 * 1024 <= to_bytes(value) <= 2**40:
            raise ValueError(f"{value} must be from 64Ki to 1Ti")
        return value

    @property
    def thresholds(self) -> tuple[pressure.Threshold, ...]:
        """The eviction thresholds."""
        return pressure.thresholds(self.eviction_hard)

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            domain = key.partition("/")[0] if "/" in key else ""
            reserved = any(domain == one or domain.endswith("." + one) for one in RESERVED_LABEL_DOMAINS)
            if reserved and not key.startswith(FREE_LABEL_PREFIXES):
                allowed = ", ".join(prefix + "…" for prefix in FREE_LABEL_PREFIXES)
                raise ValueError(f"label {key!r} is not allowed: in the kubernetes.io domains a node may set only {allowed}")
        return value


def default_node_name() -> str:
    """The host name without its local domain, in lower case: ``Annes-Studio.local`` becomes ``annes-studio``."""
    name = socket.gethostname().lower()
    for suffix in (".local", ".lan"):
        name = name.removesuffix(suffix)
    return re.sub(r"[^-.a-z0-9]+", "-", name).strip("-.") or "localhost"


def _sentence(problem: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in problem["loc"]) or "the file"
    if key == "defaultUser":
        return "defaultUser: no longer a setting, because each pod has its own user; delete it, and see podUsers"
    if problem["type"] == "extra_forbidden":
        return f"{key}: unknown setting; must be one of {', '.join(known_keys())}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}" + ("" if problem["type"] == "value_error" else f" (got {problem['input']!r})")


def known_keys() -> list[str]:
    """The names of all settings, as in the file."""
    return [to_camel(name) for name in Config.model_fields]


def parse(text: str, where: str, defaults: Mapping[str, Any] | None = None) -> Config:
    """Parses the YAML ``text``. Raises ConfigError.

    ``where`` is named in errors. ``defaults`` (camelCase) are used for settings that the text does not have.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: invalid YAML: {' '.join(str(error).split())}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: must be a mapping of settings ({', '.join(known_keys())}), not {type(data).__name__}")
    try:
        return Config.model_validate({**(defaults or {}), **data})
    except ValidationError as error:
        raise ConfigError(f"{where}: " + "; ".join(_sentence(problem) for problem in error.errors())) from None


def load(file: Path | None) -> Config:
    """The configuration in ``file``, or the defaults for None. Raises ConfigError."""
    if file is None:
        return parse("", "the defaults")
    try:
        text = file.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not a text file") from None
    return parse(text, str(file))
