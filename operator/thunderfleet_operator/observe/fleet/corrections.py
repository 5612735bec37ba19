"""How far predicted rates of generation are from what the benchmarks of this fleet measured, by chip."""

from collections.abc import Iterable, Mapping
from statistics import median

from thunderfleet_crds.kinds.modeldeployment import ModelDeployment

from thunderfleet_operator.placement import Fleet, Lengths, Request, predict
from thunderfleet_operator.placement.eligibility import wanted_model

LEAST, MOST = 0.5, 2.0
"""Bounds of a correction. A larger difference probably comes from the model or from other load, not from the chip."""


def corrections(deployments: Iterable[ModelDeployment | None], fleet: Fleet) -> Mapping[str, float]:
    """Returns the median ratio of measured to predicted rates for each chip and, under an empty name, for all chips.

    Chips without a benchmark use the median of all chips. If only chips with a benchmark were corrected, an error of all
    predictions would appear as a difference between chips. Empty without benchmarks.
    """
    ratios: dict[str, list[float]] = {}
    for deployment in [one for one in deployments if one is not None and one.status.benchmark is not None]:
        found = _ratio(deployment, fleet)
        if found is not None:
            chip, ratio = found
            ratios.setdefault(chip, []).append(ratio)
    by_chip = {chip: _bounded(median(values)) for chip, values in sorted(ratios.items()) if chip}
    everything = [ratio for values in ratios.values() for ratio in values]
    return {**by_chip, "": _bounded(median(everything))} if everything else {}


def _bounded(ratio: float) -> float:
    return round(min(MOST, max(LEAST, ratio)), 2)


def _ratio(deployment: ModelDeployment, fleet: Fleet) -> tuple[str, float] | None:
    """Chip, and measured by predicted rate; None if its placement has changed, or if its Macs have different chips."""
    measured = deployment.status.benchmark
    if measured is None or not measured.prompt_tokens:
        return None
    of = (measured.group, measured.epoch)
    group = next((group for group in deployment.status.groups if (group.index, group.epoch) == of), None)
    rate = float(measured.decode_tokens_per_second or 0)
    if group is None or group.transport is None or group.parallelism is None or not group.ranks or rate <= 0:
        return None
    ranks = sorted(group.ranks, key=lambda rank: rank.rank)
    macs = [fleet.macs[rank.node] for rank in ranks if rank.node in fleet.macs]
    if len(macs) < len(ranks) or len({mac.chip for mac in macs}) > 1:
        return None
    asked = deployment.spec.model
    wanted = Request(path=asked.path, repository=asked.kept_as, revision=asked.revision)
    model = next(iter(wanted_model(macs[0], wanted)), None)
    if model is None:
        return None
    shares = [rank.layers.count for rank in ranks if rank.layers]
    lengths = Lengths(measured.prompt_tokens, measured.generation_tokens or Lengths().generated)
    speed = predict(model, macs, group.transport, group.parallelism, shares, lengths)
    return (macs[0].chip, rate / speed.decode) if speed is not None else None
