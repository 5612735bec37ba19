"""Published speeds of MLX, by which predictions are calibrated. ``docs/speeds.md`` shows them with what is predicted."""

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Split, Transport
from thunderfleet_operator.placement import KVLayer, Lengths, Mac, ModelFacts, predict
from thunderfleet_operator.placement.rating.speed import CALIBRATED, Constants


@dataclass(frozen=True)
class Row:
    """One measurement. ``read``: billions of weights that are read for a token. ``kv``: bytes of KV cache per token."""

    name: str
    source: str
    chip: str
    gpu_cores: int
    macs: int
    read: float
    bits: int | None
    layers: int
    mixture: bool
    kv: int
    lengths: Lengths
    decode: float | None
    prefill: float | None = None
    whole: float = 0
    """Billions of all weights, where it differs."""

    @property
    def model(self) -> ModelFacts:
        bits = self.bits + 0.5 if self.bits else 16
        size = int((self.whole or self.read) * 1e9 * bits / 8)
        return ModelFacts(
            "/m",
            bytes=size,
            layer_bytes=(size // self.layers,) * self.layers,
            kv=(KVLayer(bytes_per_token=self.kv // self.layers),) * self.layers,
            active_bytes=int(self.read * 1e9 * bits / 8),
            mixture=self.mixture,
            bits=self.bits,
        )

    @property
    def ranks(self) -> list[Mac]:
        return [Mac(f"m{i}", None, 0, chip=f"Apple {self.chip}", gpu_cores=self.gpu_cores) for i in range(self.macs)]

    @property
    def way(self) -> tuple[PlacedTransport, PlacedSplit]:
        return (Transport.JACCL, Split.TENSOR) if self.macs > 1 else (Transport.NONE, Split.NONE)


At = Lengths
RAPID, EXO = "Rapid-MLX", "exo's benchmarks page"
ROWS = (
    Row("Llama 3.1 8B, 4 bit", f"{RAPID}#586", "M3 Ultra", 60, 1, 7.50, 4, 32, False, 131_000, At(512, 128), 119.4),
    Row("Qwen3 8B, 4 bit", f"{RAPID}#636", "M3 Ultra", 60, 1, 7.57, 4, 36, False, 147_000, At(512, 128), 112.9),
    Row("Qwen3 0.6B, 4 bit", f"{RAPID}#633", "M3 Ultra", 60, 1, 0.596, 4, 28, False, 115_000, At(512, 128), 387.6),
    Row("Gemma 3 4B, 4 bit", f"{RAPID}#635", "M3 Ultra", 60, 1, 3.88, 4, 34, False, 139_000, At(512, 128), 141.2),
    Row("Phi-4 mini, 4 bit", f"{RAPID}#585", "M3 Ultra", 60, 1, 3.84, 4, 32, False, 131_000, At(512, 128), 167.9, 2197),
    Row("Qwen3 0.6B, 8 bit", "vllm-mlx#531", "M4 Pro", 20, 1, 0.596, 8, 28, False, 115_000, At(56, 256), 284.2),
    Row("Qwen3 4B, 4 bit", "mlx-lm#1569", "M3 Pro", 18, 1, 4.02, 4, 36, False, 147_000, At(2048, 128), 44.6, 615),
    Row("Llama 3 70B, 16 bit", "mlx-examples#1069", "M2 Ultra", 76, 1, 69.5, None, 80, False, 328_000, At(16, 100), 4.7),
    Row("Qwen3.6 35B-A3B, 8 bit", f"{RAPID}#472", "M3 Ultra", 80, 1, 3.0, 8, 40, True, 20_000, At(256, 128), 74.7, None, 35),
    Row("Qwen3.6 35B-A3B, 4 bit", f"{RAPID}#1065", "M2 Max", 38, 1, 3.0, 4, 40, True, 20_000, At(512, 128), 79.8, None, 35),
    Row("Qwen3.5 35B-A3B, 4 bit", "Mac-MLX#24", "M5 Max", 40, 1, 3.0, 4, 40, True, 20_000, At(1479, 2023), 133.5, None, 35),
    Row("Qwen3.6 35B-A3B, 4 bit", "llmfit#1053", "M5 Pro", 20, 1, 3.0, 4, 40, True, 20_000, At(512, 128), 74.0, None, 35),
    Row("DeepSeek-V3, 4 bit, 4k", "mlx-lm#839", "M3 Ultra", 80, 1, 37, 4, 61, True, 70_000, At(4096, 128), 20.6, 213, 671),
    Row("DeepSeek-V3, 4 bit, 8k", "mlx-lm#839", "M3 Ultra", 80, 1, 37, 4, 61, True, 70_000, At(8192, 128), 18.9, 188, 671),
    Row("DeepSeek-V3, 4 bit, 16k", "mlx-lm#839", "M3 Ultra", 80, 1, 37, 4, 61, True, 70_000, At(16384, 128), 16.8, 148, 671),
    Row("Qwen3 235B-A22B, 8 bit", EXO, "M3 Ultra", 80, 1, 21.6, 8, 94, True, 193_000, At(512, 128), 19.5, None, 235),
    Row("Qwen3 235B-A22B, 8 bit", EXO, "M3 Ultra", 80, 2, 21.6, 8, 94, True, 193_000, At(512, 128), 26.2, None, 235),
    Row("Qwen3 235B-A22B, 8 bit", EXO, "M3 Ultra", 80, 4, 21.6, 8, 94, True, 193_000, At(512, 128), 31.9, None, 235),
    Row("Qwen3 0.6B, 4 bit", "mlx-lm#406", "M4 Max", 40, 1, 0.44, 4, 28, False, 115_000, At(2048, 1), None, 10_279),
    Row("Qwen3 30B-A3B, 4 bit", "mlx-lm#406", "M4 Max", 40, 1, 3.0, 4, 48, True, 98_000, At(2048, 1), None, 1732, 30),
    Row("Devstral 2 123B, 4 bit", "mlx#3094", "M3 Ultra", 80, 1, 123, 4, 88, False, 360_000, At(2048, 1), None, 91.5),
    Row("Devstral 2 123B, 4 bit", "mlx#3094", "M3 Ultra", 80, 2, 123, 4, 88, False, 360_000, At(2048, 1), None, 119),
)
LEFT_OUT = Row("", "", "M5 Max", 40, 1, 3.0, 4, 40, True, 20_000, At(1479, 2023), None, 2757, 35)
"""Prompts of Qwen3.5 35B-A3B: the only row that needs the matrix units of the M5, so none could check what it is fitted to."""
EXCLUDED = {
    "DeepSeek-V3.1 on 1, 2 and 4 M3 Ultra (exo)": "the source states 8 bit, but 8-bit weights do not fit on one Mac of 512 GB",
    "Kimi-K2-Thinking on 2 and 4 M3 Ultra (exo)": "the source does not state the precision of the weights outside the experts",
    "GLM on 1 and 4 M3 Ultra (mlx-lm#698)": "neither the model's size nor its quantization is stated",
    "gpt-oss-120B on M4 Max with M5 Max (exo#2070)": "it is not stated which of the two Macs the figure of one Mac is from",
    "Everything measured with llama.cpp": "other kernels, other quantization",
    "Qwen3.5 122B-A10B on 2 M4 Max (exo)": "measured with concurrent requests",
}


def errors(rows: Sequence[Row], what: str, constants: Constants) -> list[float]:
    """By how much each prediction is off, as a part of what was measured."""
    found = []
    for row in rows:
        measured = getattr(row, what)
        speed = predict(row.model, row.ranks, *row.way, lengths=row.lengths, constants=constants)
        assert speed is not None
        if measured:
            found.append(getattr(speed, what) / measured - 1)
    return found


DECODE_GRID = [
    {"memory_yield": part, "dense_layer": dense * 1e-6, "mixture_layer": mixture * 1e-6, "collective": link * 1e-6}
    for part, dense, mixture, link in itertools.product(
        (0.75, 0.8, 0.85), (50, 60, 70, 80, 90), (150, 180, 210, 240), (20, 30, 40)
    )
]
PREFILL_GRID = [
    {"dense_compute": dense / 100, "mixture_compute": mixture / 100}
    for dense, mixture in itertools.product(range(60, 90, 5), range(45, 75, 5))
]


def _choices(what: str) -> list[Constants]:
    return [replace(CALIBRATED, **choice) for choice in (DECODE_GRID if what == "decode" else PREFILL_GRID)]


@functools.cache
def _costs(row: Row, what: str) -> list[float]:
    """The error of a row, as a ratio, for each choice of the grid."""
    return [sum(abs(math.log(1 + error)) for error in errors([row], what, choice)) for choice in _choices(what)]


def fitted(rows: Sequence[Row], what: str) -> Constants:
    """The constants of the grid with the least sum of errors, as ratios."""
    costs = [round(sum(column), 6) for column in zip(*(_costs(row, what) for row in rows), strict=True)]
    return _choices(what)[costs.index(min(costs))]


def held_out(what: str, more: tuple[Row, ...] = ()) -> list[float]:
    """The error of each row, predicted with constants that were fitted to all others."""
    rows = [row for row in (*ROWS, *more) if getattr(row, what)]
    return [errors([row], what, fitted([other for other in rows if other is not row], what))[0] for row in rows]


def why_left_out() -> str:
    """Why a row is not used, and what it would do to the error."""
    (error,) = errors([LEFT_OUT], "prefill", CALIBRATED)
    median = statistics.median(map(abs, held_out("prefill", (LEFT_OUT,))))
    return (
        "the matrix units of the M5 are not in the table of chips, and no second measurement could check what they are fitted "
        f"to; with this row ({-100 * error:.0f} % too low) the median of held-out prompts would be {100 * median:.0f} %"
    )


def tables() -> str:
    """The tables of ``docs/speeds.md``."""
    lines = []
    for what, title in (("decode", "Generation"), ("prefill", "Prompt")):
        rows = [row for row in ROWS if getattr(row, what)]
        lines += [f"| {title} | Macs | source | measured | predicted | error | held out |", "|---|---|---|---|---|---|---|"]
        for row, error, left_out in zip(rows, errors(rows, what, CALIBRATED), held_out(what), strict=True):
            measured = getattr(row, what)
            lines.append(
                f"| {row.name} | {row.macs} × {row.chip} | {row.source} | {measured:g} | {round(measured * (1 + error), 1):g} "
                f"| {100 * error:+.0f} % | {100 * left_out:+.0f} % |"
            )
        lines.append("")
    excluded = {"Prompts of Qwen3.5 35B-A3B on M5 Max (Mac-MLX#24)": why_left_out(), **EXCLUDED}
    lines += ["| not used | because |", "|---|---|", *(f"| {name} | {why} |" for name, why in excluded.items())]
    return "\n".join(lines)
