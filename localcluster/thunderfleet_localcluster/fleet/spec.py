"""The schema of a fleet: machines, devices and cables, with checks of single values.

The module ``checks`` has the checks that depend on several values.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from thunderfleet_localcluster.fleet.catalogue import MODELS, MacModel

MAX_MACHINES = 200
MAX_CABLES = 1000


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


def _model_name(value: str) -> str:
    if value not in MODELS:
        raise ValueError(f"unknown model; allowed: {', '.join(MODELS)}")
    return value


def _gib(value: object) -> object:
    if isinstance(value, str):
        number, _, unit = value.strip().partition(" ")
        if number.isdigit() and unit in ("GB", "GiB"):
            return int(number)
    raise ValueError("write memory as a whole number of GB, such as 96 GB")


def _end(value: object) -> object:
    if isinstance(value, str):
        machine, _, port = value.partition(":")
        if machine and port.isdigit():
            return {"machine": machine, "port": int(port)}
    raise ValueError("write a cable end as machine:port, such as studio-1:1")


def _speed(value: object) -> object:
    text = str(value)
    if text not in ("20", "40", "80", "120/40"):
        raise ValueError("speed is in Gb/s; allowed: 20, 40, 80, 120/40")
    return text


def _names(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _octets(value: str) -> str:
    parts = value.split(".")
    if len(parts) != 4 or not all(part.isdigit() and int(part) <= 255 for part in parts):
        raise ValueError("write an IPv4 address, such as 192.168.64.11")
    return value


Name = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        max_length=40,
        description="Name of the machine and of its Node: lower-case letters, digits and '-'.",
    ),
]


HubName = Annotated[str, Field(min_length=1, max_length=64)]


class Device(_Model):
    """A Thunderbolt device other than a Mac at a port."""

    port: int = Field(ge=1, description="Number of the Thunderbolt port that the device is plugged into.")
    kind: Literal["dock", "display", "drive"] = Field(description="Kind of the device.")
    name: str = Field(min_length=1, max_length=64, description="Device name, such as Studio Display.")
    speed: Annotated[Literal["20", "40", "80", "120/40"], BeforeValidator(_speed)] = Field(
        default="40", description="Negotiated speed in Gb/s."
    )

    @property
    def gbps(self) -> int:
        """The faster direction's speed in Gb/s."""
        return int(self.speed.split("/")[0])


class Machine(_Model):
    """One computer of the fleet."""

    name: Name
    kind: Literal["mac", "linux"] = Field(default="mac", description="mac: a recorded Mac; linux: a Linux node.")
    model: Annotated[str, AfterValidator(_model_name)] | None = Field(
        default=None, description="Model of the Mac, such as Mac Studio (M3 Ultra); required for a Mac."
    )
    memory: Annotated[int, BeforeValidator(_gib)] | None = Field(
        default=None, description="Unified memory, such as 96 GB; default: the smallest size of the model."
    )
    rdma: bool = Field(default=False, description="Whether RDMA is enabled (rdma_ctl enable in Recovery).")
    jaccl: Literal["recorded"] | None = Field(
        default=None,
        description="recorded: MLX on this Mac has a stand-in for JACCL that sends over TCP instead of RDMA; unset: no JACCL.",
    )
    os: str = Field(default="26.3", pattern=r"^\d+(\.\d+){0,2}$", description="Version of macOS.")
    build: str = Field(default="25D125", pattern=r"^[0-9]{2}[A-Z][0-9]+[a-z]?$", description="Build of macOS.")
    address: Annotated[str, AfterValidator(_octets)] | None = Field(
        default=None, description="Address on the LAN 192.168.64.0/24; default: the next free one."
    )
    wired_limit_mb: int = Field(
        default=0, ge=0, alias="wiredLimitMB", description="sysctl iogpu.wired_limit_mb; 0: the default of macOS."
    )
    gpu_memory_mb: int | None = Field(
        default=None,
        ge=1024,
        alias="gpuMemoryMB",
        description="Memory that the GPU may use, as MLX reports it; needs jaccl: recorded. Default: MLX reports no GPU.",
    )
    bridge: tuple[int, ...] = Field(
        default=(), description="Thunderbolt ports that are members of bridge0; such a port has no IP address."
    )
    bridge_address: Annotated[str, AfterValidator(_octets)] | None = Field(
        default=None,
        description="Address of bridge0, in a /16, while one of its members has a cable; needs bridge. Default: none.",
    )
    devices: tuple[Device, ...] = Field(default=(), description="Docks, displays and drives at Thunderbolt ports.")

    @property
    def mac(self) -> MacModel:
        """Catalogue entry of the Mac's model; only for ``kind: mac``."""
        assert self.model is not None
        return MODELS[self.model]


class End(_Model):
    """One end of a cable."""

    machine: str
    port: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.machine}:{self.port}"


class Cable(_Model):
    """One Thunderbolt cable between two Macs. The hubs in ``through`` are at end ``a``, nearest first."""

    a: Annotated[End, BeforeValidator(_end)] = Field(description="One end as machine:port, such as studio-1:1.")
    b: Annotated[End, BeforeValidator(_end)] = Field(description="The other end.")
    speed: Annotated[Literal["20", "40", "80", "120/40"], BeforeValidator(_speed)] = Field(
        default="80", description="Negotiated speed in Gb/s."
    )
    through: Annotated[tuple[HubName, ...], BeforeValidator(_names)] = Field(
        default=(),
        max_length=5,
        description="Name of the hub between the ends, or a list of hubs; they are at end a, nearest first.",
    )
    seen: Literal["both", "a", "b"] = Field(default="both", description="Which ends report the Mac at the other end.")
    rate_mbps: int | None = Field(
        default=None, ge=1, le=100_000, description="Limits the cable to this rate in Mb/s (network namespaces only)."
    )
    addresses: tuple[Annotated[str, AfterValidator(_octets)], Annotated[str, AfterValidator(_octets)]] | None = Field(
        default=None, description="Addresses of ends a and b, the two hosts of one /30; default: the next free pair."
    )

    @property
    def ends(self) -> tuple[End, End]:
        return self.a, self.b

    @property
    def gbps(self) -> int:
        """The faster direction's speed in Gb/s."""
        return int(self.speed.split("/")[0])


class Fleet(_Model):
    """Machines and cables."""

    machines: tuple[Machine, ...] = Field(max_length=MAX_MACHINES, description="Machines of the cluster.")
    cables: tuple[Cable, ...] = Field(default=(), max_length=MAX_CABLES, description="Thunderbolt cables between Macs.")

    def machine(self, name: str) -> Machine:
        return next(machine for machine in self.machines if machine.name == name)
