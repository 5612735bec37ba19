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
