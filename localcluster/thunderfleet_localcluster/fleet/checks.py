"""Checks of a fleet that need more than one value: names, ports, speeds, addresses. Pure."""

from collections.abc import Iterable

from thunderfleet_localcluster.fleet.catalogue import MODELS, TB4_GBPS
from thunderfleet_localcluster.fleet.spec import Cable, End, Fleet, Machine

Location = tuple[int | str, ...]
"""Where a value is in the fleet file: keys and list indexes."""

Problem = tuple[Location, str]


def problems(fleet: Fleet) -> Iterable[Problem]:
    """All problems of the fleet: the location of each in the file, and a message that names what is allowed."""
    if not fleet.machines:
        yield ("machines",), "a fleet needs at least one machine"
    used: dict[tuple[str, int], str] = {}
    yield from _unique_names(fleet)
    yield from _unique_addresses(fleet)
    for index, machine in enumerate(fleet.machines):
        here: Location = ("machines", index)
        if machine.kind == "linux":
            yield from _linux(machine, here)
        elif machine.model is None:
            yield (*here, "model"), f"{machine.name} is a Mac: set model (one of: {', '.join(MODELS)}) or kind: linux"
        else:
            yield from _mac(machine, here)
            yield from _devices(machine, here, used)
    for index, cable in enumerate(fleet.cables):
        yield from _cable(fleet, cable, ("cables", index), used)


def _unique_names(fleet: Fleet) -> Iterable[Problem]:
    seen: set[str] = set()
    for index, machine in enumerate(fleet.machines):
        if machine.name in seen:
            yield ("machines", index, "name"), f"duplicate machine name {machine.name}"
        seen.add(machine.name)


def _unique_addresses(fleet: Fleet) -> Iterable[Problem]:
    owners: dict[str, str] = {}
    for index, machine in enumerate(fleet.machines):
        if machine.address is None:
            continue
        here: Location = ("machines", index, "address")
        octets = machine.address.split(".")
        if octets[:3] != ["192", "168", "64"] or not 2 <= int(octets[3]) <= 254:
            yield here, "allowed addresses: 192.168.64.2 to 192.168.64.254"
        elif machine.address in owners:
            yield here, f"{machine.address} is the address of {owners[machine.address]}; addresses must differ"
        owners[machine.address] = machine.name


def _linux(machine: Machine, here: Location) -> Iterable[Problem]:
    own = (machine.model, machine.memory, machine.gpu_memory_mb, machine.rdma, machine.jaccl, machine.bridge, machine.devices)
    if any(own):
        names = "model, memory, gpuMemoryMB, rdma, jaccl, bridge and devices"
        yield here, f"{machine.name} is kind: linux; {names} are for Macs only"


def _mac(machine: Machine, here: Location) -> Iterable[Problem]:
    if machine.memory is not None and machine.memory not in machine.mac.memory_gib:
        sizes = ", ".join(f"{size} GB" for size in machine.mac.memory_gib)
        yield (*here, "memory"), f"allowed for a {machine.mac.name}: {sizes}"
    if machine.gpu_memory_mb is not None and machine.jaccl is None:
        yield (*here, "gpuMemoryMB"), "needs `jaccl: recorded`: a Mac without it has the MLX of this machine"
    for port in machine.bridge:
        if not 1 <= port <= machine.mac.ports:
            yield (*here, "bridge"), f"a {machine.mac.name} {machine.mac.port_range}"
    if machine.rdma and machine.mac.virtual:
        yield (*here, "rdma"), f"RDMA needs a Thunderbolt port; a {machine.mac.name} {machine.mac.port_range}"


def _devices(machine: Machine, here: Location, used: dict[tuple[str, int], str]) -> Iterable[Problem]:
    for number, device in enumerate(machine.devices):
        at: Location = (*here, "devices", number)
        if device.port > machine.mac.ports:
            yield (*at, "port"), f"a {machine.mac.name} {machine.mac.port_range}"
        elif (machine.name, device.port) in used:
            yield (*at, "port"), f"port {device.port} already has {used[(machine.name, device.port)]}"
        elif device.gbps > TB4_GBPS and machine.mac.thunderbolt < 5:
            yield (*at, "speed"), f"port {device.port} of a {machine.mac.name} is Thunderbolt 4: at most {TB4_GBPS} Gb/s"
        used[(machine.name, device.port)] = f"the {device.kind} {device.name}"


def _cable(fleet: Fleet, cable: Cable, here: Location, used: dict[tuple[str, int], str]) -> Iterable[Problem]:
    for side, end in zip("ab", cable.ends, strict=True):
        yield from _cable_end(fleet, cable, end, (*here, side), used)
    if cable.a.machine == cable.b.machine:
        yield (*here, "b"), "a cable must join two different machines"
    if cable.addresses is not None and not _one_pair(*cable.addresses):
        yield (*here, "addresses"), "the addresses must be the two hosts of one /30, such as 10.64.1.1 and 10.64.1.2"


def _cable_end(fleet: Fleet, cable: Cable, end: End, at: Location, used: dict[tuple[str, int], str]) -> Iterable[Problem]:
    # Of machines with the same name, the last one is used; another check reports the duplicate.
    owners = {machine.name: machine for machine in fleet.machines}
    owner = owners.get(end.machine)
    if owner is None:
        yield at, f"unknown machine {end.machine}; machines: {', '.join(owners)}"
        return
    if owner.kind != "mac":
        yield at, f"{end.machine} is kind: linux; Thunderbolt cables join Macs"
        return
    if owner.model is None:
        return
    if end.port > owner.mac.ports:
        yield at, f"a {owner.mac.name} {owner.mac.port_range}"
    elif (end.machine, end.port) in used:
        yield at, f"port {end} already has {used[(end.machine, end.port)]}"
    elif cable.gbps > TB4_GBPS and owner.mac.thunderbolt < 5:
        yield (*at[:-1], "speed"), f"{end} of a {owner.mac.name} is Thunderbolt 4: at most {TB4_GBPS} Gb/s"
    used[(end.machine, end.port)] = f"a cable ({cable.a} to {cable.b})"


def _one_pair(a: str, b: str) -> bool:
    """Whether two IPv4 addresses are the two hosts of one /30."""
    first, second = (int.from_bytes(bytes(int(part) for part in address.split("."))) for address in (a, b))
    return first // 4 == second // 4 and {first % 4, second % 4} == {1, 2}
