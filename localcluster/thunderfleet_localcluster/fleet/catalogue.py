"""The Macs that a fleet file can name, with only the values that differ between models.

Identifiers, cores and port counts are those that Apple has published; for models without published ones they are assumptions.
``thunderbolt_interfaces`` are the network interfaces of the receptacles 1, 2, …; they cannot be derived from the number of the
port (port 2 of a MacBook Pro is en6). A virtual Mac has none.
"""

from dataclasses import dataclass

TB4_GBPS = 40
TB5_GBPS = 120
"""The maximum speed that a Thunderbolt 5 port reports ("Up to 120 Gb/s")."""


@dataclass(frozen=True)
class MacModel:
    """One model as Apple sells it. ``perf_cores`` + ``eff_cores`` are its CPU, ``l2`` the bytes of cache per cluster."""

    name: str
    product: str
    identifier: str
    chip: str
    perf_cores: int
    eff_cores: int
    gpu_cores: int
    memory_gib: tuple[int, ...]
    thunderbolt: int
    lan: str
    interfaces: tuple[tuple[str, str], ...]
    """Hardware ports other than Thunderbolt ones, as networksetup lists them: (port, device)."""
    thunderbolt_interfaces: tuple[str, ...]

    @property
    def ports(self) -> int:
        return len(self.thunderbolt_interfaces)

    @property
    def cores(self) -> int:
        return self.perf_cores + self.eff_cores

    @property
    def max_gbps(self) -> int:
        return TB5_GBPS if self.thunderbolt == 5 else TB4_GBPS

    @property
    def virtual(self) -> bool:
        return not self.thunderbolt_interfaces

    @property
    def port_range(self) -> str:
        """The Thunderbolt ports of the model, as part of a sentence."""
        return f"has the Thunderbolt ports 1 to {self.ports}" if self.ports else "has no Thunderbolt port"


def _adapters(first: int, count: int) -> tuple[tuple[str, str], ...]:
    return tuple((f"Ethernet Adapter (en{n})", f"en{n}") for n in range(first, first + count))


def _desktop(
    name: str,
    identifier: str,
    chip: str,
    cores: tuple[int, int, int],
    memory: tuple[int, ...],
    thunderbolt: int,
    ports: int,
) -> MacModel:
    tb = tuple(f"en{n}" for n in range(2, 2 + ports))
    return MacModel(
        name=name,
        product=name.split(" (")[0],
        identifier=identifier,
        chip=chip,
        perf_cores=cores[0],
        eff_cores=cores[1],
        gpu_cores=cores[2],
        memory_gib=memory,
        thunderbolt=thunderbolt,
        lan="Ethernet",
        interfaces=(("Ethernet", "en0"), *_adapters(2 + ports, ports), ("Wi-Fi", "en1")),
        thunderbolt_interfaces=tb,
    )


def _laptop(
    name: str,
    identifier: str,
    chip: str,
    cores: tuple[int, int, int],
    memory: tuple[int, ...],
    thunderbolt: int,
    tb: tuple[str, ...],
) -> MacModel:
    taken = {int(device[2:]) for device in tb}
    free = next(n for n in range(3, 20) if n not in taken)
    return MacModel(
        name=name,
        product=name.split(" (")[0],
        identifier=identifier,
        chip=chip,
        perf_cores=cores[0],
        eff_cores=cores[1],
        gpu_cores=cores[2],
        memory_gib=memory,
        thunderbolt=thunderbolt,
        lan="Wi-Fi",
        interfaces=(*_adapters(free, 1), ("Wi-Fi", "en0")),
        thunderbolt_interfaces=tb,
    )


def _virtual(name: str, chip: str) -> MacModel:
    return MacModel(
        name=name,
        product="Apple Virtual Machine 1",
        identifier="VirtualMac2,1",
        chip=f"{chip} (Virtual)",
        perf_cores=4,
        eff_cores=0,
        gpu_cores=0,
        memory_gib=(4, 8, 16),
        thunderbolt=0,
        lan="Ethernet",
        interfaces=(("Ethernet", "en0"),),
        thunderbolt_interfaces=(),
    )


_TWO, _THREE = ("en1", "en2"), ("en1", "en2", "en3")
_MODELS = (
    _desktop("Mac mini (M1)", "Macmini9,1", "Apple M1", (4, 4, 8), (8, 16), 4, 2),
    _desktop("Mac mini (M2)", "Mac14,3", "Apple M2", (4, 4, 10), (8, 16, 24), 4, 2),
    _desktop("Mac mini (M2 Pro)", "Mac14,12", "Apple M2 Pro", (8, 4, 19), (16, 32), 4, 4),
    _desktop("Mac mini (M4)", "Mac16,10", "Apple M4", (4, 6, 10), (16, 24, 32), 4, 3),
    _desktop("Mac mini (M4 Pro)", "Mac16,11", "Apple M4 Pro", (10, 4, 20), (24, 48, 64), 5, 3),
    _desktop("Mac mini (M5)", "Mac17,10", "Apple M5", (4, 6, 10), (16, 24, 32), 4, 3),
    _desktop("Mac mini (M5 Pro)", "Mac17,11", "Apple M5 Pro", (6, 12, 20), (24, 48, 64), 5, 3),
    _desktop("Mac Studio (M1 Max)", "Mac13,1", "Apple M1 Max", (8, 2, 32), (32, 64), 4, 4),
    _desktop("Mac Studio (M1 Ultra)", "Mac13,2", "Apple M1 Ultra", (16, 4, 64), (64, 128), 4, 6),
    _desktop("Mac Studio (M2 Max)", "Mac14,13", "Apple M2 Max", (8, 4, 38), (32, 64, 96), 4, 4),
    _desktop("Mac Studio (M2 Ultra)", "Mac14,14", "Apple M2 Ultra", (16, 8, 76), (64, 128, 192), 4, 6),
    _desktop("Mac Studio (M4 Max)", "Mac16,9", "Apple M4 Max", (12, 4, 40), (36, 48, 64, 128), 5, 4),
    _desktop("Mac Studio (M3 Ultra)", "Mac15,14", "Apple M3 Ultra", (20, 8, 60), (96, 256, 512), 5, 6),
    _desktop("Mac Studio (M5 Max)", "Mac17,13", "Apple M5 Max", (6, 12, 40), (36, 48, 64, 128), 5, 4),
    _desktop("Mac Studio (M5 Ultra)", "Mac17,14", "Apple M5 Ultra", (12, 24, 80), (96, 256, 512), 5, 6),
    _desktop("Mac Pro (M2 Ultra)", "Mac14,8", "Apple M2 Ultra", (16, 8, 76), (64, 128, 192), 4, 8),
    _laptop("MacBook Pro (M1 Pro)", "MacBookPro18,3", "Apple M1 Pro", (8, 2, 16), (16, 32), 4, _THREE),
    _laptop("MacBook Pro (M1 Max)", "MacBookPro18,4", "Apple M1 Max", (8, 2, 32), (32, 64), 4, _THREE),
    _laptop("MacBook Pro (M2 Pro)", "Mac14,9", "Apple M2 Pro", (8, 4, 19), (16, 32), 4, _THREE),
    _laptop("MacBook Pro (M2 Max)", "Mac14,5", "Apple M2 Max", (8, 4, 38), (32, 64, 96), 4, _THREE),
    _laptop("MacBook Pro (M3)", "Mac15,3", "Apple M3", (4, 4, 10), (8, 16, 24), 4, _TWO),
    _laptop("MacBook Pro (M3 Pro)", "Mac15,6", "Apple M3 Pro", (6, 6, 18), (18, 36), 4, _THREE),
    _laptop("MacBook Pro (M3 Max)", "Mac15,9", "Apple M3 Max", (12, 4, 40), (48, 64, 128), 4, _THREE),
    _laptop("MacBook Pro (M4)", "Mac16,1", "Apple M4", (4, 6, 10), (16, 24, 32), 4, _THREE),
    _laptop("MacBook Pro (M4 Pro)", "Mac16,8", "Apple M4 Pro", (10, 4, 20), (24, 48), 5, _THREE),
    _laptop("MacBook Pro (M4 Max)", "Mac16,5", "Apple M4 Max", (12, 4, 40), (36, 48, 64, 128), 5, _THREE),
    _laptop("MacBook Pro (M5)", "Mac17,2", "Apple M5", (4, 6, 10), (16, 24, 32), 4, _THREE),
    _laptop("MacBook Pro (M5 Pro)", "Mac17,8", "Apple M5 Pro", (6, 12, 20), (24, 48, 64), 5, ("en1", "en6", "en2")),
    _laptop("MacBook Pro (M5 Max)", "Mac17,6", "Apple M5 Max", (6, 12, 40), (36, 48, 64, 128), 5, ("en1", "en6", "en2")),
    _laptop("MacBook Air (M1)", "MacBookAir10,1", "Apple M1", (4, 4, 8), (8, 16), 4, _TWO),
    _laptop("MacBook Air (M2)", "Mac14,2", "Apple M2", (4, 4, 10), (8, 16, 24), 4, _TWO),
    _laptop("MacBook Air (M3)", "Mac15,12", "Apple M3", (4, 4, 10), (8, 16, 24), 4, _TWO),
    _laptop("MacBook Air (M4)", "Mac16,12", "Apple M4", (4, 6, 10), (16, 24, 32), 4, _TWO),
    _laptop("MacBook Air (M5)", "Mac17,3", "Apple M5", (4, 6, 10), (16, 24, 32), 4, _TWO),
    _virtual("Virtual Mac (M4 Max)", "Apple M4 Max"),
)

MODELS: dict[str, MacModel] = {model.name: model for model in _MODELS}
