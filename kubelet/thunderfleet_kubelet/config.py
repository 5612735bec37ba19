"""The kubelet's settings: one YAML file, read once, refused with a sentence that names the file, the key and what is allowed.

A node's settings are few on purpose. What the machine is (Mac or not, chip, memory) is asked of the machine; what it must
run comes from the API server. Left here is what neither can know.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_NODE_NAME = 253
# What NodeRestriction lets a node set of itself inside kubernetes.io; labels outside of it are free.
RESERVED_LABEL_DOMAINS = ("kubernetes.io", "k8s.io")
FREE_LABEL_PREFIXES = ("kubelet.kubernetes.io/", "node.kubernetes.io/")


class ConfigError(ValueError):
    """The settings cannot be used; the message is one sentence for whoever wrote them."""


class _Settings(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", validate_default=False
    )


class User(_Settings):
    """A user and a group of the machine, by number."""

    uid: Annotated[int, Field(ge=0, le=2**31 - 1)]
    gid: Annotated[int, Field(ge=0, le=2**31 - 1)]


class Config(_Settings):
    """Every setting of ``thunderfleet-kubelet``; the file's keys are these names in camelCase."""

    node_name: Annotated[str, Field(min_length=1, max_length=MAX_NODE_NAME)] = Field(
        default_factory=lambda: default_node_name()
    )
    """The Node's name, and the name in every certificate. Default: the machine's host name in lower case."""
    addresses: list[str] = Field(default_factory=lambda: default_addresses())
    """The machine's own addresses, published as InternalIPs; the kubelet's server listens on the first.
    Default: the address that a packet to the API server would leave from."""
    port: Annotated[int, Field(ge=1, le=65535)] = 10250
    """Where the kubelet's server listens."""
    path: list[Path] = []
    """Folders at the front of PATH: for the kubelet's own commands and for every container."""
    python_path: list[Path] = []
    """PYTHONPATH of every container; unset when empty."""
    images: dict[str, Path] = {}
    """Image name (exactly as in a pod) to the folder that stands for it."""
    default_user: User | None = User(uid=65534, gid=65534)
    """Who runs a container that names no user; null is the kubelet's own user, which may then not be root."""
    labels: dict[str, str] = {}
    """Labels for the Node beside those that the kubelet sets itself."""
    max_pods: Annotated[int, Field(ge=1, le=1000)] = 110
    node_status_seconds: Annotated[int, Field(ge=1, le=3600)] = 10
    """How often the machine is looked at; the Node is written when something changed, and every five minutes."""
    lease_seconds: Annotated[int, Field(ge=4, le=3600)] = 40
    """How long the Lease holds; it is renewed after a quarter of that."""
    certificate_seconds: Annotated[int, Field(ge=600, le=315_360_000)] = 31_536_000
    """For how long certificates are asked; the cluster may give less. Each is renewed after 80 % of its life."""
    reserved_memory_bytes: Annotated[int, Field(ge=0)] = 0
    """Memory that pods cannot ask for: capacity less this is allocatable."""
    reserved_cpu_millis: Annotated[int, Field(ge=0)] = 0
    """Millicores that pods cannot ask for."""

    @field_validator("node_name")
    @classmethod
    def _node_name(cls, value: str) -> str:
        if not NODE_NAME.fullmatch(value):
            raise ValueError(f"{value!r} is no node name: lower-case letters, digits, '-' and '.', as in 'studio-1'")
        return value

    @field_validator("addresses")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError("at least one address is needed: the kubelet's server listens on the first")
        for text in value:
            try:
                address = ipaddress.ip_address(text)
            except ValueError:
                raise ValueError(f"{text!r} is no IP address, as in '192.168.64.11'") from None
            if address.is_unspecified or address.is_multicast:
                raise ValueError(f"{text} stands for no one machine: give the machine's own address")
        return value

    @field_validator("path", "python_path")
    @classmethod
    def _folders(cls, value: list[Path]) -> list[Path]:
        for folder in value:
            if not folder.is_absolute():
                raise ValueError(f"{str(folder)!r} is not absolute: a folder must start with '/'")
        return value

    @field_validator("images")
    @classmethod
    def _images(cls, value: dict[str, Path]) -> dict[str, Path]:
        for image, folder in value.items():
            if not folder.is_absolute():
                raise ValueError(f"the folder of {image!r}, {str(folder)!r}, is not absolute: it must start with '/'")
        return value

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            domain = key.partition("/")[0] if "/" in key else ""
            reserved = any(domain == one or domain.endswith("." + one) for one in RESERVED_LABEL_DOMAINS)
            if reserved and not key.startswith(FREE_LABEL_PREFIXES):
                allowed = ", ".join(prefix + "…" for prefix in FREE_LABEL_PREFIXES)
                raise ValueError(f"a node may not set label {key!r} of itself; inside kubernetes.io only {allowed}")
        return value


def default_node_name() -> str:
    """The host name without its local domain, in lower case: ``Annes-Studio.local`` becomes ``annes-studio``."""
    name = socket.gethostname().lower()
    for suffix in (".local", ".lan"):
        name = name.removesuffix(suffix)
    return re.sub(r"[^-.a-z0-9]+", "-", name).strip("-.") or "localhost"


def default_addresses() -> list[str]:
    """The address of the interface with the default route. No packet is sent: a UDP socket only asks the routing table."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ["127.0.0.1"]
        return [str(probe.getsockname()[0])]


def _sentence(problem: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in problem["loc"]) or "the file"
    if problem["type"] == "extra_forbidden":
        return f"{key}: no such setting; known are {', '.join(known_keys())}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}" + ("" if problem["type"] == "value_error" else f" (it is {problem['input']!r})")


def known_keys() -> list[str]:
    """The settings' names as they stand in the file."""
    return [to_camel(name) for name in Config.model_fields]


def parse(text: str, where: str, defaults: Mapping[str, Any] | None = None) -> Config:
    """Parses the YAML ``text``. Raises ConfigError.

    ``where`` is named in errors. ``defaults`` (camelCase) are used for settings that the text does not have.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not YAML: {' '.join(str(error).split())}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: must be a mapping of settings ({', '.join(known_keys())}), not a {type(data).__name__}")
    try:
        return Config.model_validate({**(defaults or {}), **data})
    except ValidationError as error:
        raise ConfigError(f"{where}: " + "; ".join(_sentence(problem) for problem in error.errors())) from None


def load(file: Path | None) -> Config:
    """Settings of ``file``; the defaults when there is none. Raises ConfigError."""
    if file is None:
        return parse("", "the defaults")
    try:
        text = file.read_text()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not text") from None
    return parse(text, str(file))


def same_user_problem(config: Config, *, uid: int, in_user_namespace: bool) -> str | None:
    """Why ``defaultUser: null`` cannot be had by a kubelet that runs as ``uid``, or None."""
    if config.default_user is None and uid == 0 and not in_user_namespace:
        return "defaultUser: null would run containers as root; give {uid, gid} of an unprivileged user, as 65534"
    return None
