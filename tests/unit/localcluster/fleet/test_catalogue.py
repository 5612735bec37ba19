"""The table of Mac models against what Apple says of chips in general, so that a wrong figure of one model stands out."""

from thunderfleet_localcluster.fleet.catalogue import MODELS, MacModel

REAL = [model for model in MODELS.values() if not model.virtual]
# Capacities that Apple sells: multiples of what memory chips hold.
SOLD_GIB = {8, 16, 18, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512}
THUNDERBOLT_5 = {f"Apple {chip}" for chip in ("M3 Ultra", "M4 Pro", "M4 Max", "M5 Pro", "M5 Max", "M5 Ultra")}


def cores(model: MacModel) -> tuple[int, int, int]:
    return model.perf_cores, model.eff_cores, model.gpu_cores


def test_one_chip_has_the_same_cores_in_every_model() -> None:
    by_chip: dict[str, set[tuple[int, int, int]]] = {}
    for model in REAL:
        by_chip.setdefault(model.chip, set()).add(cores(model))
    assert {chip: found for chip, found in by_chip.items() if len(found) > 1} == {}


def test_an_ultra_is_two_max() -> None:
    by_chip = {model.chip: cores(model) for model in REAL}
    two = {
        chip: tuple(2 * count for count in by_chip[chip.replace(" Ultra", " Max")])
        for chip in by_chip
        if chip.endswith(" Ultra")
    }
    # The Mac Studio with M3 Ultra is sold with fewer cores too, and that one is in the table.
    two["Apple M3 Ultra"] = (20, 8, 60)
    assert {chip: found for chip, found in by_chip.items() if chip in two} == two


def test_memory_is_sold_in_capacities_that_rise() -> None:
    for model in REAL:
        assert set(model.memory_gib) <= SOLD_GIB, model.name
        assert list(model.memory_gib) == sorted(set(model.memory_gib)), model.name


def test_the_chip_decides_about_thunderbolt() -> None:
    assert {model.name: (model.thunderbolt, model.max_gbps) for model in REAL} == {
        model.name: (5, 120) if model.chip in THUNDERBOLT_5 else (4, 40) for model in REAL
    }


# CPU and GPU cores in Apple's technical specifications; of chips sold with different numbers, those of the largest.
PUBLISHED = {
    "M1": (8, 8), "M1 Pro": (10, 16), "M1 Max": (10, 32), "M1 Ultra": (20, 64),
    "M2": (8, 10), "M2 Pro": (12, 19), "M2 Max": (12, 38), "M2 Ultra": (24, 76),
    "M3": (8, 10), "M3 Pro": (12, 18), "M3 Max": (16, 40),
    "M4": (10, 10), "M4 Pro": (14, 20), "M4 Max": (16, 40),
}  # fmt: skip


def test_cores_are_those_that_apple_publishes() -> None:
    found = {model.chip.removeprefix("Apple "): (model.cores, model.gpu_cores) for model in REAL}
    assert {chip: found[chip] for chip in PUBLISHED} == PUBLISHED


def test_a_model_is_named_by_its_product_and_chip() -> None:
    assert {model.product for model in REAL} == {"Mac mini", "Mac Studio", "Mac Pro", "MacBook Pro", "MacBook Air"}
    for model in REAL:
        assert model.name == f"{model.product} ({model.chip.removeprefix('Apple ')})"


def test_every_device_is_one_port_and_their_numbers_have_no_gap() -> None:
    for model in REAL:
        devices = [*(device for _, device in model.interfaces), *model.thunderbolt_interfaces]
        numbers = sorted(int(device.removeprefix("en")) for device in devices)
        assert len(set(numbers)) == len(numbers), model.name
        laptop = model.product.startswith("MacBook")
        # In laptops, numbers are left out for devices that networksetup does not list.
        assert numbers == list(range(len(numbers))) or laptop, model.name
        assert dict(model.interfaces)[model.lan] == "en0" and dict(model.interfaces)["Wi-Fi"] == ("en0" if laptop else "en1")
        adapters = [(port, device) for port, device in model.interfaces if port.startswith("Ethernet Adapter")]
        assert all(port == f"Ethernet Adapter ({device})" for port, device in adapters)
        assert len(adapters) == (1 if laptop else model.ports), model.name


def published_ports(model: MacModel) -> int:
    """Thunderbolt ports in Apple's technical specifications."""
    chip = model.chip.removeprefix("Apple ")
    match model.product:
        case "Mac Studio":
            return 6 if chip.endswith("Ultra") else 4
        case "Mac Pro":
            return 8
        case "Mac mini":
            return {"M1": 2, "M2": 2, "M2 Pro": 4}.get(chip, 3)
        case "MacBook Pro":
            return 2 if chip == "M3" else 3
        case _:
            return 2


def test_a_model_has_the_ports_that_apple_publishes() -> None:
    assert {model.name: model.ports for model in REAL} == {model.name: published_ports(model) for model in REAL}
