"""Predicted tokens per second of one request.

Decoding reads the weights of a token and its KV cache from memory, and starts a number of kernels for each layer. Tensor
parallelism divides what is read, and adds two collectives a layer; the ranks of a pipeline work one after the other. Prefill
computes, and reads the weights once a step. The constants are calibrated on published measurements, which
``docs/speeds.md`` lists with what the model predicts for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log2, sqrt

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Split, Transport

from thunderfleet_operator.placement.inputs.fleet import Mac
from thunderfleet_operator.placement.inputs.model import KVLayer, ModelFacts
from thunderfleet_operator.placement.inputs.request import Lengths
from thunderfleet_operator.placement.rating.chips import chip

PREFILL_STEP = 2048
"""Tokens of one step of prefill."""
HOP_SECONDS = {Transport.JACCL: 30e-6, Transport.JACCL_RING: 40e-6, Transport.RING: 300e-6}
"""Seconds of one hop of a pipeline, by transport."""
HALF_BYTES = 2
"""Bytes of one value of an activation."""
EXCHANGE_RATE = {Transport.NONE: inf, Transport.JACCL: 6.5e9, Transport.JACCL_RING: 6.5e9, Transport.RING: 2.5e9}
"""Bytes per second of a large all-reduce of two Macs with Thunderbolt 5."""
BENCHMARK = Lengths()
"""The default lengths of a benchmark."""


@dataclass(frozen=True, slots=True)
class Constants:
    """The calibrated constants."""

    memory_yield: float = 0.8
    """Fraction of a chip's bandwidth in its data sheet that decoding reaches."""
    dense_layer: float = 70e-6
    """Seconds of a layer in addition to reading its weights."""
    mixture_layer: float = 180e-6
    """The same for a layer with experts."""
    collective: float = 20e-6
    """Seconds of one small all-reduce of two Macs over JACCL, with the crossing from GPU to CPU and back."""
    dense_compute: float = 0.75
    """Fraction of a chip's GFLOPS that prefill reaches."""
    mixture_compute: float = 0.55


CALIBRATED = Constants()
MEASURED_YIELD = 1.0
"""Fraction for measured bandwidths: the agents' benchmark, a sum over a large array, reaches what decoding reaches."""
MEASURED_COMPUTE_YIELD = 0.9
"""Fraction of the rate of the agents' matrix multiplications that prefill reaches."""
COLLECTIVE_FACTOR = {Transport.JACCL: 1.0, Transport.JACCL_RING: 2.0, Transport.RING: 10.0}


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of one request."""

    decode: float
    """Corrected."""
    prefill: float
    correction: float = 1.0
    """Factor that ``decode`` includes because benchmarks of the fleet differ from predictions."""

    @property
    def uncorrected(self) -> float:
        """``decode`` without this correction."""
        return self.decode / self.correction


def predict(
    model: ModelFacts,
    macs: Sequence[Mac],
    transport: PlacedTransport,
    split: PlacedSplit,
    shares: Sequence[int] = (),
    lengths: Lengths = BENCHMARK,
    constants: Constants = CALIBRATED,
    corrections: Mapping[str, float] | None = None,
) -> Speed | None:
    """The speed of a model on these Macs, by rank; None if its weights or the rates of a Mac are not known.

    ``shares``: layers of each rank of a pipeline; empty: the same. ``corrections``: as in ``Request``.
    """
    rates = [_rates(mac, model, constants) for mac in macs]
    known = [rate for rate in rates if rate is not None]
    if not model.active_bytes or not model.layer_bytes or len(known) < len(rates):
        return None
    parts = _parts(len(macs), split, shares)
    decode = _decode(model, known, parts, transport, split, lengths, constants)
    prefill = _prefill(model, known, parts, transport, split, lengths, constants)
    correction = _correction(macs, corrections or {})
    return Speed(correction / decode, min(lengths.prompt, PREFILL_STEP) / prefill, correction)


def _correction(macs: Sequence[Mac], corrections: Mapping[str, float]) -> float:
    """The correction of a group, from the mean time of its ranks."""
    others = corrections.get("", 1.0)
    return len(macs) / sum(1 / corrections.get(mac.chip, others) for mac in macs)


def unknown(model: ModelFacts, macs: Sequence[Mac]) -> str:
    """Why ``predict`` predicts nothing, as a clause."""
    if not model.active_bytes or not model.layer_bytes:
        return f"no agent has published yet how many bytes of {model.repository or model.path} are read to generate a token"
    lacking = [mac for mac in macs if _rates(mac, model, CALIBRATED) is None]
    mac = min(lacking, key=lambda mac: mac.name)
    chip_name = f"its chip {mac.chip}" if mac.chip else "its chip, which its agent has not published"
    return (
        f"{mac.name} has no benchmark yet (the condition BenchmarksFresh of its NodeProfile shows why), and Thunderfleet has "
        f"no speed on record for {chip_name}"
    )


def bandwidth(mac: Mac) -> int:
    """Memory bandwidth in MB/s that decoding reaches on a Mac; 0 if it is not known."""
    known = chip(mac.chip, mac.gpu_cores)
    if mac.memory_bandwidth or known is None:
        return int(mac.memory_bandwidth * MEASURED_YIELD)
    return int(known.bandwidth * CALIBRATED.memory_yield)


def _parts(size: int, split: PlacedSplit, shares: Sequence[int]) -> list[float]:
    """The part of the weights that each rank reads."""
    if split is Split.PIPELINE and shares:
        return [share / sum(shares) for share in shares]
    return [1 / size] * size


def _rates(mac: Mac, model: ModelFacts, constants: Constants) -> tuple[float, float] | None:
    """Bytes and operations per second that a Mac reaches."""
    known = chip(mac.chip, mac.gpu_cores)
    if known is None and not (mac.memory_bandwidth and mac.gigaflops):
        return None
    compute_yield = constants.mixture_compute if model.mixture else constants.dense_compute
    bandwidth = mac.memory_bandwidth * MEASURED_YIELD if mac.memory_bandwidth or known is None else 0.0
    compute = mac.gigaflops * MEASURED_COMPUTE_YIELD * compute_yield / constants.dense_compute
    if known is not None:
        bandwidth = bandwidth or known.bandwidth * constants.memory_yield
        compute = compute or known.gigaflops * compute_yield
    return bandwidth * 1e6, compute * 1e9


def _kept(layer: KVLayer, tokens: int) -> int:
    return layer.bytes_per_token * (min(tokens, layer.window_tokens) if layer.window_tokens else tokens)


def _decode(
    model: ModelFacts,
    rates: Sequence[tuple[float, float]],
    parts: Sequence[float],
    transport: PlacedTransport,
    split: PlacedSplit,
    lengths: Lengths,
    constants: Constants,
) -> float:
    """Seconds of one token in the middle of the answer."""
    tokens = lengths.prompt + lengths.generated // 2
    read = model.active_bytes + sum(_kept(layer, tokens) for layer in model.kv)
    times = [read * part / rate for part, (rate, _) in zip(parts, rates, strict=True)]
    layers = len(model.layer_bytes)
    kernels = layers * (constants.mixture_layer if model.mixture else constants.dense_layer)
    return _joined(times, kernels, 2 * layers * _collective(len(rates), transport, constants), transport, split)


def _collective(size: int, transport: PlacedTransport, constants: Constants) -> float:
    """Seconds of a small all-reduce."""
    return constants.collective * COLLECTIVE_FACTOR.get(transport, 1.0) * (1 + 0.4 * (log2(size) - 1))


def _prefill(
    model: ModelFacts,
    rates: Sequence[tuple[float, float]],
    parts: Sequence[float],
    transport: PlacedTransport,
    split: PlacedSplit,
    lengths: Lengths,
    constants: Constants,
) -> float:
    """Seconds of the prompt's first step."""
    tokens = min(lengths.prompt, PREFILL_STEP)
    bits = model.bits + 0.5 if model.bits else 16
    operations = 2 * model.active_bytes * 8 / bits * tokens
    # With many tokens a step uses every expert.
    read = sum(model.layer_bytes) if model.mixture else model.active_bytes
    times = [part * (operations / compute + read / memory) for part, (memory, compute) in zip(parts, rates, strict=True)]
    layers = len(model.layer_bytes)
    kernels = layers * (constants.mixture_layer if model.mixture else constants.dense_layer)
    # A layer of a transformer has about 12 weights for each pair of its activations.
    width = sqrt(operations / tokens / 2 / layers / 12)
    exchange = _collective(len(rates), transport, constants) + HALF_BYTES * tokens * width / EXCHANGE_RATE[transport]
    return _joined(times, kernels, 2 * layers * exchange, transport, split)


def _joined(times: Sequence[float], kernels: float, exchanges: float, transport: PlacedTransport, split: PlacedSplit) -> float:
    """Seconds of all ranks together: at once with two exchanges a layer, or one after the other."""
    if len(times) > 1 and split is Split.TENSOR:
        return max(times) + kernels + exchanges
    return sum(times) + kernels + (len(times) * HOP_SECONDS[transport] if len(times) > 1 else 0)
