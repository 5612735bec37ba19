"""All observations of this Mac at one moment, as one immutable value.

A field is None if its command has not succeeded (yet); ``failures`` has the reason, by source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from thunderfleet_crds.kinds.nodeprofile import Model, Runtime
from thunderfleet_lib.host.hostcmd import Failure
from thunderfleet_lib.macnet.parse import Interface, Service
from thunderfleet_lib.rdma.parse import DeviceInfo

from thunderfleet_agent.observe.panics import Panic
from thunderfleet_agent.observe.parsers.hardware import Hardware, System
from thunderfleet_agent.observe.parsers.thunderbolt import Thunderbolt


class Source(StrEnum):
    """The sources of facts; each is one command with its own time limit and interval."""

    THUNDERBOLT = "thunderbolt"
    HARDWARE = "hardware"
    DISPLAYS = "displays"
    SYSCTL = "sysctl"
    GPU_MEMORY = "gpu-memory"
    SYSTEM = "system"
    HARDWARE_PORTS = "hardware-ports"
    SERVICES = "services"
    INTERFACES = "interfaces"
    RDMA_SWITCH = "rdma-switch"
    RDMA_DEVICES = "rdma-devices"
    RDMA_INFO = "rdma-info"
    RUNTIME = "runtime"
    MODELS = "models"


RDMA_SOURCES = (Source.RDMA_SWITCH, Source.RDMA_DEVICES, Source.RDMA_INFO)


def _nothing() -> Mapping[Source, Failure]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Facts:
    """``hardware_ports`` maps an interface to the name of its port, ``sysctl`` a variable to its text.

    ``gpu_memory``: what the GPU may use according to MLX, in bytes; 0 if it has no GPU.
    """

    thunderbolt: Thunderbolt | None = None
    hardware: Hardware | None = None
    gpu_cores: int | None = None
    sysctl: Mapping[str, str] | None = None
    gpu_memory: int | None = None
    system: System | None = None
    hardware_ports: Mapping[str, str] | None = None
    services: tuple[Service, ...] | None = None
    interfaces: tuple[Interface, ...] | None = None
    rdma_switch: bool | None = None
    rdma_devices: tuple[str, ...] | None = None
    rdma_info: tuple[DeviceInfo, ...] | None = None
    runtime: Runtime | None = None
    models: tuple[Model, ...] | None = None
    panic: Panic | None = None
    failures: Mapping[Source, Failure] = field(default_factory=_nothing)
