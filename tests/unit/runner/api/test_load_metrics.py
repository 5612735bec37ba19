"""Metrics of the ranks' progress in loading the model."""

from prometheus_client import CollectorRegistry
from thunderfleet_crds.exchange.group import GroupState, RankReport
from thunderfleet_crds.vocabulary import GroupPhase, RankPhase
from thunderfleet_runner.group.metrics import GroupMetrics


def test_each_rank_shows_the_bytes_and_layers_that_it_has_loaded() -> None:
    registry = CollectorRegistry()
    metrics = GroupMetrics(registry, dict)
    ranks = (
        RankReport(rank=0, node="a", phase=RankPhase.LOADING, loaded_bytes=5, total_bytes=10, loaded_layers=2),
        RankReport(rank=1, node="b", phase=RankPhase.LOADING),
    )
    metrics.observe(GroupState(uid="u", index=0, epoch=1, phase=GroupPhase.LOADING, ranks=ranks))

    def shown(field: str, rank: int, node: str) -> float | None:
        return registry.get_sample_value(f"thunderfleet_runner_rank_{field}", {"rank": str(rank), "node": node})

    assert [shown(field, 0, "a") for field in ("loaded_bytes", "total_bytes", "loaded_layers")] == [5, 10, 2]
    assert shown("loaded_bytes", 1, "b") == 0
