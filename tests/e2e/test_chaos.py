"""The fault suite with two short seeds; ``python -m tests.chaos`` runs long ones."""

from collections.abc import Iterator

import pytest

from tests.chaos import plan
from tests.chaos.plan import Shape
from tests.chaos.run import Runner, cluster
from tests.support.tiers import quick

# Between them: killed, frozen and cut off; in the barrier, in the middle of streams, while draining.
SEEDS = ((1031, Shape(2, "Ring")), (1895, Shape(3, "JACCL")))


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with cluster() as line:
        yield Runner(line, print)


@pytest.mark.parametrize(("seed", "shape"), quick(SEEDS[1:], SEEDS))
def test_after_every_fault_it_serves_again_and_nothing_is_left(runner: Runner, seed: int, shape: Shape) -> None:
    (episode,) = plan.first(seed, 3, shapes=(shape,))
    records = list(runner.run(seed, [episode]))
    assert not [f"{record.where}: {text}" for record in records for text in record.violations]
    assert [record.plan for record in records] == list(episode.steps)
    assert all(record.injected and record.recovered for record in records)
