"""The fault suite with two short episodes; ``python -m tests.chaos`` runs long ones."""

from collections.abc import Iterator

import pytest

from tests.chaos import fleet
from tests.chaos.plan import Action, Blow, Episode, Fault, Shape, Stage, Step, Target
from tests.chaos.run import Runner
from tests.support.suite.tiers import quick

MACS = 3


def step(stage: Stage, rank: int, *faults: tuple[Action, Target], seconds: int = 5) -> Step:
    return Step(stage, tuple(Blow(Fault(*fault), rank) for fault in faults), seconds)


EPISODES = (
    Episode(
        0,
        MACS,
        Shape(2, "Ring"),
        (
            step(Stage.BARRIER, 0, (Action.KILL, Target.SUPERVISOR)),
            step(Stage.STREAMS, 1, (Action.CUT, Target.API_SERVER), (Action.FILL, Target.MAC)),
            step(Stage.DRAINING, 0, (Action.KILL, Target.KUBELET)),
        ),
    ),
    # Upgrades, which no client may notice.
    Episode(
        1,
        MACS,
        Shape(2, "JACCL"),
        (
            step(Stage.STREAMS, 0, (Action.UPDATE, Target.OPERATOR), (Action.UPDATE, Target.AGENT)),
            step(Stage.STREAMS, 0, (Action.UPDATE, Target.KUBELET)),
            step(Stage.DRAINING, 1, (Action.KILL, Target.ETCD)),
        ),
    ),
)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with fleet.cluster(MACS, measured=False) as line:
        yield Runner(line, print)


@pytest.mark.parametrize("episode", quick(EPISODES[1:], EPISODES))
def test_after_every_fault_it_serves_again_and_nothing_is_left(runner: Runner, episode: Episode) -> None:
    (records,) = runner.run(0, [episode])
    assert not [f"{record.where}: {text}" for record in records for text in record.violations]
    assert [record.plan for record in records] == list(episode.steps)
    assert all(record.injected and record.recovered for record in records)
