"""Fleet files: which machines a local cluster has and which cables join them.

People write these by hand, so an error names the file and the line, says what is wrong and what is allowed. The schema is
pydantic's; the lines come from the YAML nodes that the values were read from.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.catalogue import MODELS, TB4_GBPS, MacModel

Location = tuple[int | str, ...]
MAX_MACHINES = 200
MAX_CABLES = 1000

DEFAULT_FLEET = """\
# Two Studios joined by one Thunderbolt 5 cable, with RDMA on; a mini with Thunderbolt 4 behind a hub; and two plain Linux
# machines for the operator's replicas. `thunderfleet up` takes this fleet when it is given none.
machines:
  - name: studio-1
    model: Mac Studio (M3 Ultra)
    memory: 96 GB
    rdma: true
  - name: studio-2
    model: Mac Studio (M3 Ultra)
    memory: 96 GB
    rdma: true
  - name: mini-1
    model: Mac mini (M4)
    memory: 32 GB
  - name: linux-1
    kind: linux
  - name: linux-2
    kind: linux
cables:
  - a: studio-1:1
    b: studio-2:1
    speed: 80
  - a: studio-1:2
    b: mini-1:1
    speed: 40
    through: OWC Thunderbolt Hub
"""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


def _model_name(value: str) -> str:
    if value not in MODELS:
        raise ValueError(f"no such Mac in the catalogue; one of: {', '.join(MODELS)}")
    return value


def _gib(value: object) -> object:
    if isinstance(value, str):
        number, _, unit = value.strip().partition(" ")
        if number.isdigit() and unit in ("GB", "GiB"):
            return int(number)
    raise ValueError("write the memory like Apple does: 96 GB")


def _end(value: object) -> object:
    if isinstance(value, str):
        machine, _, port = value.partition(":")
        if machine and port.isdigit():
            return {"machine": machine, "port": int(port)}
    raise ValueError("write an end as machine:port, such as studio-1:1")


def _speed(value: object) -> object:
    text = str(value)
    if text not in ("20", "40", "80", "120/40"):
        raise ValueError("a cable's speed in Gb/s is one of 20, 40, 80, 120/40")
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
    """What is plugged into a Thunderbolt port and is no Mac."""

    port: int = Field(ge=1)
    kind: Literal["dock", "display", "drive"]
    name: str = Field(min_length=1, max_length=64, description="What it calls itself, such as Studio Display.")
    speed: Annotated[Literal["20", "40", "80", "120/40"], BeforeValidator(_speed)] = "40"

    @property
    def gbps(self) -> int:
        """The faster direction's speed in Gb/s."""
        return int(self.speed.split("/")[0])


class Machine(_Model):
    """One computer of the fleet."""

    name: Name
    kind: Literal["mac", "linux"] = "mac"
    model: Annotated[str, AfterValidator(_model_name)] | None = None
    memory: Annotated[int, BeforeValidator(_gib)] | None = Field(default=None, description="Unified memory, such as 96 GB.")
    rdma: bool = Field(default=False, description="Whether RDMA was switched on in Recovery.")
    jaccl: Literal["recorded"] | None = Field(
        default=None, description="recorded: its MLX has a JACCL that runs over a recorded cable instead of RDMA."
    )
    os: str = Field(default="26.3", pattern=r"^\d+(\.\d+){0,2}$", description="Version of macOS.")
    build: str = Field(default="25D125", pattern=r"^[0-9]{2}[A-Z][0-9]+[a-z]?$", description="Build of macOS.")
    address: Annotated[str, AfterValidator(_octets)] | None = Field(
        default=None, description="Its address on the LAN 192.168.64.0/24; without it the next free one."
    )
    wired_limit_mb: int = Field(default=0, ge=0, alias="wiredLimitMB", description="iogpu.wired_limit_mb; 0: macOS decides.")
    bridge: tuple[int, ...] = Field(
        default=(), description="Thunderbolt ports that are members of bridge0 (they then have no address of their own)."
    )
    devices: tuple[Device, ...] = Field(default=(), description="Docks, displays and drives at Thunderbolt ports.")

    @property
    def mac(self) -> MacModel:
        """What the catalogue says of this Mac's model. Only for ``kind: mac``."""
        assert self.model is not None
        return MODELS[self.model]


class End(_Model):
    """One end of a cable."""

    machine: str
    port: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.machine}:{self.port}"


class Cable(_Model):
    """One Thunderbolt cable between two Macs. With ``through`` the hubs hang on end ``a``, nearest first."""

    a: Annotated[End, BeforeValidator(_end)]
    b: Annotated[End, BeforeValidator(_end)]
    speed: Annotated[Literal["20", "40", "80", "120/40"], BeforeValidator(_speed)] = "80"
    through: Annotated[tuple[HubName, ...], BeforeValidator(_names)] = Field(
        default=(), max_length=5, description="Name of a hub in between, near end a, or a list of them."
    )
    seen: Literal["both", "a", "b"] = Field(default="both", description="Which ends see the other one.")
    rate_mbps: int | None = Field(
        default=None, ge=1, le=100_000, description="Slows the cable down to so many Mbit/s (namespaces only)."
    )
    addresses: tuple[Annotated[str, AfterValidator(_octets)], Annotated[str, AfterValidator(_octets)]] | None = Field(
        default=None, description="Addresses of end a and end b, of one /30; without them the next free pair."
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

    machines: tuple[Machine, ...] = Field(max_length=MAX_MACHINES)
    cables: tuple[Cable, ...] = Field(default=(), max_length=MAX_CABLES)

    def machine(self, name: str) -> Machine:
        return next(machine for machine in self.machines if machine.name == name)

    @property
    def macs(self) -> tuple[Machine, ...]:
        return tuple(machine for machine in self.machines if machine.kind == "mac")


def problems(fleet: Fleet) -> Iterable[tuple[Location, str]]:
    """What one value alone cannot show: where in the file, and a sentence."""
    if not fleet.machines:
        yield ("machines",), "a fleet has at least one machine"
    seen: dict[str, int] = {}
    addresses: dict[str, str] = {}
    used: dict[tuple[str, int], str] = {}
    for index, machine in enumerate(fleet.machines):
        here: Location = ("machines", index)
        if machine.name in seen:
            yield (*here, "name"), f"machine {machine.name} is named twice"
        seen[machine.name] = index
        if machine.kind == "mac" and machine.model is None:
            yield (*here, "model"), f"{machine.name} is a Mac: say its model (one of: {', '.join(MODELS)}), or kind: linux"
            continue
        if machine.kind == "mac" and machine.memory is not None and machine.memory not in machine.mac.memory_gib:
            sizes = ", ".join(f"{size} GB" for size in machine.mac.memory_gib)
            yield (*here, "memory"), f"a {machine.mac.name} has one of {sizes}"
        if machine.kind == "linux" and (
            machine.model is not None
            or machine.memory is not None
            or machine.rdma
            or machine.bridge
            or machine.jaccl
            or machine.devices
        ):
            yield here, f"{machine.name} is kind: linux: model, memory, rdma, jaccl, bridge and devices belong to Macs"
        if machine.kind == "mac":
            for port in machine.bridge:
                if not 1 <= port <= machine.mac.ports:
                    yield (*here, "bridge"), f"a {machine.mac.name} {machine.mac.port_range}"
            if machine.rdma and machine.mac.virtual:
                yield (*here, "rdma"), f"a {machine.mac.name} {machine.mac.port_range}, and RDMA needs one"
            yield from _devices(machine, here, used)
        if machine.address is not None:
            octets = machine.address.split(".")
            if octets[:3] != ["192", "168", "64"] or not 2 <= int(octets[3]) <= 254:
                yield (*here, "address"), "an address is one of 192.168.64.2 to 192.168.64.254"
            elif machine.address in addresses:
                yield (*here, "address"), f"{addresses[machine.address]} has that address"
            addresses[machine.address] = machine.name
    for index, cable in enumerate(fleet.cables):
        for side, end in zip("ab", cable.ends, strict=True):
            at: Location = ("cables", index, side)
            if end.machine not in seen:
                yield at, f"no machine is named {end.machine}; machines: {', '.join(seen)}"
                continue
            owner = fleet.machines[seen[end.machine]]
            if owner.kind != "mac":
                yield at, f"{end.machine} is kind: linux: Thunderbolt cables join Macs"
                continue
            if owner.model is None:
                continue
            if not 1 <= end.port <= owner.mac.ports:
                yield at, f"a {owner.mac.name} {owner.mac.port_range}"
            elif (end.machine, end.port) in used:
                yield at, f"port {end} has {used[(end.machine, end.port)]} already; a port takes one cable"
            elif cable.gbps > TB4_GBPS and owner.mac.thunderbolt < 5:
                yield (*at[:2], "speed"), f"{end} of a {owner.mac.name} is Thunderbolt 4: at most {TB4_GBPS} Gb/s"
            used[(end.machine, end.port)] = f"a cable ({cable.a} to {cable.b})"
        if cable.a.machine == cable.b.machine:
            yield ("cables", index, "b"), "a cable joins two different machines"
        if cable.addresses is not None and not _one_pair(*cable.addresses):
            yield (
                ("cables", index, "addresses"),
                "the two addresses of a cable are the two hosts of one /30, such as 10.64.1.1, 10.64.1.2",
            )


def _devices(machine: Machine, here: Location, used: dict[tuple[str, int], str]) -> Iterable[tuple[Location, str]]:
    for number, device in enumerate(machine.devices):
        at: Location = (*here, "devices", number)
        if device.port > machine.mac.ports:
            yield (*at, "port"), f"a {machine.mac.name} {machine.mac.port_range}"
        elif (machine.name, device.port) in used:
            yield (*at, "port"), f"port {device.port} has {used[(machine.name, device.port)]} already"
        elif device.gbps > TB4_GBPS and machine.mac.thunderbolt < 5:
            yield (*at, "speed"), f"port {device.port} of a {machine.mac.name} is Thunderbolt 4: at most {TB4_GBPS} Gb/s"
        used[(machine.name, device.port)] = f"the {device.kind} {device.name}"


def _one_pair(a: str, b: str) -> bool:
    first, second = (int.from_bytes(bytes(int(part) for part in address.split("."))) for address in (a, b))
    return first // 4 == second // 4 and {first % 4, second % 4} == {1, 2}


class _Lines(yaml.SafeLoader):
    """A safe loader that refuses a key that is written twice: the first one would be lost without a word."""


def _unique(loader: _Lines, node: yaml.MappingNode) -> dict[Any, Any]:
    keys: set[str] = set()
    for key, _ in node.value:
        if key.value in keys:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is written twice", key.start_mark)
        keys.add(key.value)
    return dict(loader.construct_mapping(node, deep=True))


_Lines.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique)


def _line(node: yaml.Node | None, location: Location) -> int:
    """The line (from 1) of the value at ``location``, or of the nearest thing around it that exists."""
    line = node.start_mark.line + 1 if node else 1
    for step in location:
        following: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    line, following = key.start_mark.line + 1, value
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            following = node.value[step]
            line = following.start_mark.line + 1
        if following is None:
            break
        node = following
    return line


_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not a key here",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}


def _sentence(error: Any) -> tuple[Location, str]:
    location: Location = tuple(error["loc"])
    if error["type"] == "value_error":
        what = str(error["ctx"]["error"])
    else:
        what = _WORDS.get(error["type"]) or error["msg"][0].lower() + error["msg"][1:]
    if error["type"] == "extra_forbidden":
        inner = Device if "devices" in location else Machine if location[0] == "machines" else Cable
        owner = {0: Fleet, 1: Fleet}.get(len(location) - 1) or inner
        known = ", ".join(field.alias or name for name, field in owner.model_fields.items())
        what += f"; allowed: {known}"
    return location, what


def _where(location: Location) -> str:
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def parse_fleet(text: str, file: str = "fleet") -> Fleet:
    """The fleet that ``text`` (YAML) describes. Raises LocalClusterError: each error with file, line and what is allowed."""
    try:
        node = yaml.compose(text, Loader=_Lines)
        value = yaml.load(text, Loader=_Lines)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise LocalClusterError(
            f"{file}:{mark.line + 1 if mark else 1}: not valid YAML: {error.problem}", usage=True
        ) from error
    except yaml.YAMLError as error:
        raise LocalClusterError(f"{file}: not valid YAML: {error}", usage=True) from error
    if not isinstance(value, dict):
        raise LocalClusterError(f"{file}:1: a fleet file has the keys machines and cables", usage=True)
    try:
        fleet = Fleet.model_validate(value)
        found = list(problems(fleet))
    except ValidationError as error:
        found = [_sentence(item) for item in error.errors()]
    if found:
        lines = sorted({(_line(node, location), f"{_where(location)}: {what}") for location, what in found})
        raise LocalClusterError("\n".join(f"{file}:{line}: {what}" for line, what in lines), usage=True)
    return fleet


def load_fleet(path: Path | None) -> Fleet:
    """The fleet in the file at ``path``; the default fleet without one. Raises LocalClusterError."""
    if path is None:
        return parse_fleet(DEFAULT_FLEET, "the default fleet")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LocalClusterError(f"{path}: cannot be read: {error}", usage=True) from error
    return parse_fleet(text, str(path))
