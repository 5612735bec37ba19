"""Predicted tokens per second: calibrated on published measurements, and what follows from the model's terms."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from thunderfleet_crds.kinds.modeldeployment import BenchmarkResult, ModelDeployment, ModelDeploymentSpec
from thunderfleet_crds.vocabulary import PlacementPolicy, Split, Transport
from thunderfleet_operator.decide.status.speed import predicted_status
from thunderfleet_operator.observe.fleet.corrections import corrections
from thunderfleet_operator.placement import (
    Cable,
    End,
    Fleet,
    KVLayer,
    Lengths,
    Mac,
    MemoryRequest,
    ModelFacts,
    Placement,
    Request,
    Speed,
    TensorFacts,
    WherePlaced,
    plan,
    predict,
)
from thunderfleet_operator.placement.rating.chips import chip
from thunderfleet_operator.placement.rating.speed import CALIBRATED
from thunderfleet_operator.plan_cli import render, report

from tests.unit.operator.placement.policy.published import ROWS, Row, errors, fitted, held_out, tables

GB = 10**9
DOCS = Path(__file__).parents[5] / "docs" / "speeds.md"
DENSE = ModelFacts("/m", bytes=40 * GB, layer_bytes=(GB // 2,) * 80, active_bytes=40 * GB, bits=4)


def ultra(name: str = "a", **more: object) -> Mac:
    return replace(Mac(name, f"10.0.0.{ord(name)}", 400 * GB, chip="Apple M3 Ultra", gpu_cores=80), **more)  # type: ignore[arg-type]


def decode(macs: list[Mac], transport: Transport, split: Split, model: ModelFacts = DENSE, **more: object) -> float:
    found = predict(model, macs, transport, split, **more)  # type: ignore[arg-type]
    assert found is not None
    return found.decode


@pytest.mark.parametrize("what", ["decode", "prefill"])
def test_published_measurements_that_were_held_out_are_predicted(what: str) -> None:
    assert statistics.median(map(abs, held_out(what))) <= 0.2
    rows = [row for row in ROWS if getattr(row, what)]
    fit = fitted(rows, what)
    names = {"decode": ("memory_yield", "dense_layer", "mixture_layer", "collective")}.get(
        what, ("dense_compute", "mixture_compute")
    )
    assert [getattr(fit, name) for name in names] == pytest.approx([getattr(CALIBRATED, name) for name in names])
    assert statistics.median(map(abs, errors(rows, what, CALIBRATED))) <= 0.15


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}, {row.macs} x {row.chip}")
def test_no_published_row_is_far_off(row: Row) -> None:
    found = [*errors([row], "decode", CALIBRATED), *errors([row], "prefill", CALIBRATED)]
    assert len(found) == (row.decode is not None) + (row.prefill is not None) > 0
    assert all(1 / 1.45 <= 1 + error <= 1.45 for error in found)


def test_the_documentation_shows_what_is_predicted() -> None:
    assert tables() in DOCS.read_text()


def test_what_was_measured_counts_before_the_table_of_chips() -> None:
    slow = [ultra(memory_bandwidth=400_000)]
    assert decode(slow, Transport.NONE, Split.NONE) < decode([ultra()], Transport.NONE, Split.NONE)
    unknown = Mac("b", None, 0, memory_bandwidth=655_200, gigaflops=28_000)
    assert decode([unknown], Transport.NONE, Split.NONE) == pytest.approx(decode([ultra()], Transport.NONE, Split.NONE))


def test_nothing_is_predicted_where_too_little_is_known() -> None:
    assert predict(DENSE, [Mac("b", None, 0, chip="Apple M9")], Transport.NONE, Split.NONE) is None
    assert predict(DENSE, [Mac("b", None, 0, memory_bandwidth=400_000)], Transport.NONE, Split.NONE) is None
    assert predict(replace(DENSE, active_bytes=0), [ultra()], Transport.NONE, Split.NONE) is None
    assert predict(replace(DENSE, layer_bytes=()), [ultra()], Transport.NONE, Split.NONE) is None


def test_tensor_parallelism_divides_what_is_read_and_a_pipeline_does_not() -> None:
    two = [ultra("a"), ultra("b")]
    alone = decode([ultra()], Transport.NONE, Split.NONE)
    assert decode(two, Transport.JACCL, Split.TENSOR) > 1.5 * alone
    assert 0.98 * alone < decode(two, Transport.RING, Split.PIPELINE) < alone
    assert decode(two, Transport.RING, Split.TENSOR) < decode(two, Transport.JACCL, Split.TENSOR)
    uneven = [ultra("a"), replace(ultra("b"), chip="Apple M4 Pro", gpu_cores=20)]
    few = decode(uneven, Transport.RING, Split.PIPELINE, shares=(70, 10))
    assert few > decode(uneven, Transport.RING, Split.PIPELINE, shares=(10, 70))


def test_the_context_is_read_too_but_not_beyond_a_window() -> None:
    full = replace(DENSE, kv=(KVLayer(bytes_per_token=100_000),) * 80)
    window = replace(DENSE, kv=(KVLayer(bytes_per_token=100_000, window_tokens=1024),) * 80)
    short, long = (Lengths(tokens, 128) for tokens in (512, 65_536))
    rates = [
        decode([ultra()], Transport.NONE, Split.NONE, model, lengths=lengths)
        for model in (full, window)
        for lengths in (short, long)
    ]
    assert rates[1] < rates[3] < rates[2] and rates[0] == rates[2]


def test_chips_by_name() -> None:
    found = chip("Apple M4 Max", 32)
    assert found is not None and found.bandwidth == 410_000
    assert [chip(name) for name in ("M2", "M3 Pro", "M2 Ultra")] == [chip("M2", 10), chip("M3 Pro", 18), chip("M2 Ultra", 80)]
    assert chip("Apple M4 Max") == chip("M4 Max", 40) and chip("Apple Vision") is None and chip("") is None


def benchmarked(name: str, nodes: tuple[str, ...], rate: str, **more: object) -> ModelDeployment:
    group = {
        "index": 0,
        "epoch": 2,
        "transport": "None" if len(nodes) == 1 else "JACCL",
        "parallelism": "None" if len(nodes) == 1 else "Tensor",
        "ranks": [{"rank": rank, "node": node} for rank, node in enumerate(nodes)],
    }
    measured = {"group": 0, "epoch": 2, "decodeTokensPerSecond": rate, "promptTokens": 512, "generationTokens": 128, **more}
    item = {
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"model": {"path": "/m"}},
        "status": {"groups": [group], "benchmark": measured},
    }
    return ModelDeployment.load(item)


def of_chips() -> Fleet:
    return Fleet(
        [
            *(ultra(name, models=(DENSE,)) for name in "abcd"),
            ultra("m", chip="Apple M4 Pro", gpu_cores=20, models=(DENSE,)),
            ultra("n", chip="Apple M4 Max", gpu_cores=40, models=(DENSE,)),
        ]
    )


def test_benchmarks_of_the_fleet_correct_predictions_by_chip() -> None:
    fleet = of_chips()
    alone = decode([ultra()], Transport.NONE, Split.NONE)
    mini = decode([fleet.macs["m"]], Transport.NONE, Split.NONE)
    measured = [benchmarked(name, (name,), f"{alone * part:.3f}") for name, part in (("a", 0.8), ("b", 0.9), ("c", 1.4))]
    measured.append(benchmarked("m", ("m",), f"{mini * 0.6:.3f}"))
    found = corrections([*measured, None], fleet)
    assert found == {"Apple M3 Ultra": 0.9, "Apple M4 Pro": 0.6, "": 0.85}
    for name, part in (("a", 0.9), ("m", 0.6), ("n", 0.85)):
        speed = predict(DENSE, [fleet.macs[name]], Transport.NONE, Split.NONE, corrections=found)
        plain = predict(DENSE, [fleet.macs[name]], Transport.NONE, Split.NONE)
        assert speed is not None and plain is not None
        assert speed.decode == pytest.approx(plain.decode * part) and speed.uncorrected == pytest.approx(plain.decode)
        assert speed.prefill == plain.prefill
    both = predict(DENSE, [fleet.macs["a"], fleet.macs["m"]], Transport.RING, Split.PIPELINE, corrections=found)
    assert both is not None and both.correction == pytest.approx(2 / (1 / 0.9 + 1 / 0.6))


def test_a_benchmark_that_says_nothing_about_a_chip_is_left_out() -> None:
    fleet = of_chips()
    moved = benchmarked("a", ("a",), "5", epoch=1)
    gone, mixed, idle = benchmarked("z", ("z",), "5"), benchmarked("am", ("a", "m"), "5"), benchmarked("a", ("a",), "0")
    short = benchmarked("a", ("a",), "5", promptTokens=None)
    assert corrections([moved, gone, mixed, idle, short], fleet) == {}
    assert corrections([benchmarked("a", ("a",), "5")], Fleet([replace(fleet.macs["a"], models=())])) == {}
    assert corrections([benchmarked("a", ("a",), "0.1")], fleet)[""] == 0.5
    assert corrections([benchmarked("a", ("a",), "9000")], fleet)[""] == 2.0


def test_a_corrected_prediction_decides_and_is_asked_for_again_only_without_a_placement() -> None:
    facts = replace(DENSE, repository="org/m", tensor=(TensorFacts(1, (40 * GB,)),))
    macs = [
        ultra("a", models=(facts,)),
        ultra("b", chip="Apple M2 Ultra", gpu_cores=76, models=(facts,)),
    ]
    request = Request(path="/m", memory=MemoryRequest(1024, 1, 0, 10), policy=PlacementPolicy.FEWEST)
    slower = replace(request, corrections={"Apple M3 Ultra": 0.6, "": 1.0})
    for asked, node in ((request, "a"), (slower, "b")):
        found = plan(Fleet(macs), asked)
        assert isinstance(found, Placement) and found.nodes == (node,)
    assert WherePlaced(Fleet(), (request,)).same_request(WherePlaced(Fleet(), (slower,)))


# Bits of the memory bus and megatransfers per second of a chip's memory.
BUSES = {
    "M1": (128, 4266), "M1 Pro": (256, 6400), "M1 Max": (512, 6400), "M1 Ultra": (1024, 6400),
    "M2": (128, 6400), "M2 Pro": (256, 6400), "M2 Max": (512, 6400), "M2 Ultra": (1024, 6400),
    "M3": (128, 6400), "M3 Pro": (192, 6400), "M3 Max": (512, 6400), "M3 Ultra": (1024, 6400),
    "M4": (128, 7500), "M4 Pro": (256, 8533), "M4 Max": (512, 8533),
    "M5": (128, 9600), "M5 Pro": (256, 9600), "M5 Max": (512, 9600),
}  # fmt: skip


@pytest.mark.parametrize("name", BUSES)
def test_bandwidths_are_whole_gigabytes_per_second_of_the_memory_bus(name: str) -> None:
    bits, transfers = BUSES[name]
    found = chip(f"Apple {name}")
    assert found is not None and found.bandwidth % 1000 == 0
    assert found.bandwidth == pytest.approx(bits / 8 * transfers, rel=0.03)


@pytest.mark.parametrize(("name", "megahertz"), [("M1", 1278), ("M2", 1398), ("M3", 1398), ("M4", 1578), ("M5", 1620)])
def test_a_core_has_128_lanes_that_multiply_and_add_at_its_clock(name: str, megahertz: int) -> None:
    found = chip(name, 1000)
    assert found is not None and found.gigaflops == 1000 * round(128 * 2 * megahertz / 1000)


@pytest.mark.parametrize(
    ("transport", "microseconds"), [(Transport.JACCL, 20), (Transport.JACCL_RING, 40), (Transport.RING, 200)]
)
def test_a_token_waits_for_two_all_reduces_of_each_layer(transport: Transport, microseconds: int) -> None:
    two = [ultra("a"), ultra("b")]
    free = replace(CALIBRATED, collective=0.0)
    seconds = 1 / decode(two, transport, Split.TENSOR) - 1 / decode(two, transport, Split.TENSOR, constants=free)
    assert seconds == pytest.approx(2 * len(DENSE.layer_bytes) * microseconds * 1e-6)


def test_a_placement_and_its_runners_up_have_predictions() -> None:
    facts = ModelFacts(
        "/m", "org/m", bytes=40 * GB, tensor=(TensorFacts(1, (40 * GB,)), TensorFacts(2, (20 * GB,) * 2)),
        layer_bytes=(GB // 2,) * 80, active_bytes=40 * GB, bits=4,
    )  # fmt: skip
    macs = [ultra(name, models=(facts,), backends=frozenset({"ring", "jaccl"})) for name in "ab"]
    cable = Cable("a--b", End("a", "1.1", "x"), End("b", "1.2", "y"), 80_000, rdma_problem=None)
    memory = MemoryRequest(1024, 1, 0, 10)
    found = plan(Fleet(macs, [cable]), Request(path="/m", memory=memory), runners_up=3)
    assert isinstance(found, Placement) and found.predicted is not None
    assert found.predicted.decode == decode(macs[:1], Transport.NONE, Split.NONE, facts)
    pair = next(entry for entry in found.runners_up if len(entry.nodes) == 2)
    assert pair.predicted is not None and pair.predicted.decode > found.predicted.decode


def test_plan_shows_the_correction_and_how_far_a_prediction_is_off() -> None:
    def shown(speed: Speed, measured: float | None) -> str:
        found = report._speed(speed, measured)
        assert found is not None
        return render._predicted(found)

    rates = "20 tokens/s, prompts 331 tokens/s (one request)"
    change = "; tokens/s includes a correction by -20 % from benchmarks of this fleet"
    off = "; measured: 16 tokens/s (the prediction is off by +25 %)"
    assert shown(Speed(20.04, 331.4), None) == rates
    assert shown(Speed(20.04, 331.4), 16) == rates + off
    assert shown(Speed(20.04, 331.4, 0.8), None) == rates + change
    assert shown(Speed(20.04, 331.4, 0.8), 20) == (
        f"{rates}{change}; measured: 20 tokens/s (the prediction is off by +25 % without that correction)"
    )


def test_the_status_shows_how_far_a_prediction_is_off() -> None:
    class Of:
        index, epoch = 1, 3

    speed = Speed(22.04, 331.4)
    measured = BenchmarkResult.load({"group": 1, "epoch": 3, "decodeTokensPerSecond": "20"})
    found = predicted_status(speed, Of(), measured)  # type: ignore[arg-type]
    assert found is not None and found.dump() == {
        "decodeTokensPerSecond": "22.0", "prefillTokensPerSecond": "331", "decodeErrorPercent": 10,
    }  # fmt: skip
    corrected = predicted_status(Speed(20.04, 331.4, 0.8), Of(), measured)  # type: ignore[arg-type]
    assert corrected is not None and corrected.dump() == {
        "decodeTokensPerSecond": "20.0", "prefillTokensPerSecond": "331", "correctionPercent": 80, "decodeErrorPercent": 25,
    }  # fmt: skip
    other = predicted_status(speed, Of(), BenchmarkResult.load({"group": 1, "epoch": 2, "decodeTokensPerSecond": "20"}))  # type: ignore[arg-type]
    assert other is not None and other.decode_error_percent is None
    assert predicted_status(None, Of(), measured) is None  # type: ignore[arg-type]
    assert ModelDeploymentSpec.load({"model": {"path": "/m"}}).benchmark.prompt_tokens == Lengths().prompt
