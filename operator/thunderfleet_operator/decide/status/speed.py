"""``status.groups[].predicted``: the predicted speed of a placement, and how far it is from what was measured."""

from collections.abc import Mapping

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import BenchmarkResult, ModelDeploymentSpec, Predicted
from thunderfleet_crds.meta.fields import quantity

from thunderfleet_operator.decide.manifests import transport
from thunderfleet_operator.placement import Fleet, Lengths, Speed, predict

MOST_PERCENT = 1_000_000
"""Larger errors are shown as this."""


def predicted_speed(
    plan: Plan, fleet: Fleet, spec: ModelDeploymentSpec, corrections: Mapping[str, float] | None = None
) -> Speed | None:
    """The predicted speed of a placement; None if a Mac has gone, or its rates or the model's weights are not known."""
    macs = [fleet.macs[rank.node] for rank in plan.ranks if rank.node in fleet.macs]
    if len(macs) < len(plan.ranks):
        return None
    model = next((model for model in macs[0].models if model.path == plan.model_path), None)
    if model is None:
        return None
    shares = [rank.layers[1] - rank.layers[0] for rank in plan.ranks if rank.layers]
    lengths = Lengths(spec.benchmark.prompt_tokens, spec.benchmark.generation_tokens)
    return predict(model, macs, transport(plan), plan.split, shares, lengths, corrections=corrections)


def _rounded(rate: float) -> str:
    """Three significant digits, which do not change with every measurement of a Mac."""
    return quantity(rate, 0 if rate >= 100 else 1 if rate >= 10 else 2)


def predicted_status(speed: Speed | None, plan: Plan | None, measured: BenchmarkResult | None) -> Predicted | None:
    """The entry of a group. ``measured``: the most recent benchmark, of any group."""
    if speed is None or plan is None:
        return None
    error = None
    if measured is not None and (measured.group, measured.epoch) == (plan.index, plan.epoch):
        rate = float(measured.decode_tokens_per_second or 0)
        error = min(MOST_PERCENT, round(100 * abs(speed.uncorrected / rate - 1))) if rate > 0 else None
    return Predicted(
        decode_tokens_per_second=_rounded(speed.decode),
        prefill_tokens_per_second=_rounded(speed.prefill),
        correction_percent=round(100 * speed.correction) if speed.correction != 1 else None,
        decode_error_percent=error,
    )
