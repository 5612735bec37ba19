"""The file of the kubelet's configuration, in YAML. Errors name the file, the key and what is allowed.

A kubelet reads the file once, so a separate process reads it and the kubelet does not keep the 9 MB of the libraries.
"""

import base64
import dataclasses
import ipaddress
import json
import pickle
import re
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass
from thunderfleet_lib.host import yamltext
from thunderfleet_lib.macnet.subnets import DEFAULT_NETWORK

from thunderfleet_kubelet import pressure
from thunderfleet_kubelet.config import Config, ConfigError, ImagePulls, PodUsers, text_of

NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# NodeRestriction lets a node set only labels with these prefixes in kubernetes.io; others are free.
RESERVED_LABEL_DOMAINS = ("kubernetes.io", "k8s.io")
FREE_LABEL_PREFIXES = ("kubelet.kubernetes.io/", "node.kubernetes.io/")

_KEYS = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


@dataclass(config=ConfigDict(**_KEYS, title="PodUsers"), frozen=True)
class FilePodUsers(PodUsers):
    """``podUsers`` of a file."""

    @model_validator(mode="after")
    def _fits(self) -> "FilePodUsers":
        if self.ids.stop > 2**31:
            raise ValueError(f"first + count must be at most {2**31}, not {self.ids.stop}")
        return self


@dataclass(config=ConfigDict(**_KEYS, title="ImagePulls"), frozen=True)
class FileImagePulls(ImagePulls):
    """``imagePulls`` of a file."""

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
    def _ordered(self) -> "FileImagePulls":
        if self.low_threshold_percent >= self.high_threshold_percent:
            raise ValueError("lowThresholdPercent must be less than highThresholdPercent")
        return self


@dataclass(config=ConfigDict(**_KEYS, title="Config"), frozen=True)
class FileConfig(Config):
    """The settings of a file."""

    image_pulls: FileImagePulls = field(default_factory=FileImagePulls)
    pod_users: FilePodUsers = field(default_factory=FilePodUsers)

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
    def _enough_users(self) -> "FileConfig":
        if self.pod_users.count < self.max_pods:
            raise ValueError(f"podUsers.count is {self.pod_users.count}; it must be at least maxPods, {self.max_pods}")
        return self

    @model_validator(mode="after")
    def _shutdown_periods(self) -> "FileConfig":
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


SETTINGS: TypeAdapter[FileConfig] = TypeAdapter(FileConfig)


def _sentence(problem: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in problem["loc"]) or "the file"
    if key == "defaultUser":
        return "defaultUser: no longer a setting, because each pod has its own user; delete it, and see podUsers"
    if problem["type"] == "unexpected_keyword_argument":
        return f"{key}: unknown setting; must be one of {', '.join(known_keys())}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}" + ("" if problem["type"] == "value_error" else f" (got {problem['input']!r})")


def known_keys() -> list[str]:
    """The names of all settings, as in the file."""
    return [to_camel(one.name) for one in dataclasses.fields(Config)]


def parse(text: str, where: str, defaults: Mapping[str, Any] | None = None) -> Config:
    """Parses the YAML ``text``. Raises ConfigError.

    ``where`` is named in errors. ``defaults`` (camelCase) are used for settings that the text does not have.
    """
    try:
        data = yamltext.load(text)
    except yamltext.InvalidYamlError as error:
        raise ConfigError(f"{where}: invalid YAML: {error}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: must be a mapping of settings ({', '.join(known_keys())}), not {type(data).__name__}")
    try:
        return _plain(SETTINGS.validate_python({**(defaults or {}), **data}))
    except ValidationError as error:
        raise ConfigError(f"{where}: " + "; ".join(_sentence(problem) for problem in error.errors())) from None


def _plain(read: FileConfig) -> Config:
    """The same values without instances of this module's classes, because other processes do not import it."""
    users, pulls = (
        plain(**{one.name: getattr(value, one.name) for one in dataclasses.fields(plain)})
        for plain, value in ((PodUsers, read.pod_users), (ImagePulls, read.image_pulls))
    )
    values = {one.name: getattr(read, one.name) for one in dataclasses.fields(Config)}
    return Config(**{**values, "pod_users": users, "image_pulls": pulls})


def load(file: Path | None) -> Config:
    """The configuration in ``file``, or the defaults for None. Raises ConfigError."""
    return parse("", "the defaults") if file is None else parse(text_of(file), str(file))


def answer(order: Mapping[str, Any]) -> dict[str, str]:
    """Parses the ``text`` of the order, from ``where``: the ``config``, pickled, or the ``problem``.

    ``node_name``: the Node's name if the text does not set it.
    """
    try:
        config = parse(order["text"], order["where"], {"nodeName": order["node_name"]})
    except ConfigError as error:
        return {"problem": str(error)}
    return {"config": base64.b64encode(pickle.dumps(config)).decode()}


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
