"""Which supervisors may join, and the message for the others."""

from collections.abc import Callable
from typing import Any

import pytest
from thunderfleet_runner.group.rendezvous import Identity, Rendezvous
from thunderfleet_runner.net.peers import Hello


@pytest.fixture
def rendezvous(make_group: Callable[..., Any]) -> Rendezvous:
    return Rendezvous(make_group(3).plan, Identity("0.32.4", "0.32.2", "abc"), frozenset({0}))


def hello(**changes: Any) -> Hello:
    right = {"uid": "5c1f", "index": 0, "epoch": 3, "rank": 1, "node": "studio-1", "mlx": "0.32.4", "mlx_lm": "0.32.2"}
    return Hello.model_validate({**right, "digest": "abc", **changes})


def test_the_right_one_is_let_in(rendezvous: Rendezvous) -> None:
    after, refusal = rendezvous.claim(hello())
    assert refusal is None
    assert after.present == {0, 1}
    assert after.leave(1).present == {0}


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"uid": "other"}, "Stranger", "not other/0"),
        ({"index": 1}, "Stranger", "not 5c1f/1"),
        ({"epoch": 2}, "StaleEpoch", "epoch 2 is stale"),
        ({"epoch": 4}, "StaleEpoch", "epoch 4 is newer"),
        ({"rank": 0, "node": "studio-0"}, "NoSuchRank", "ranks 1 to 2"),
        ({"rank": 3}, "NoSuchRank", "ranks 1 to 2"),
        ({"node": "studio-2"}, "WrongNode", "planned on node studio-1"),
        ({"mlx": "0.32.3"}, "VersionDiffers", "mlx 0.32.3, rank 0 runs 0.32.4"),
        ({"mlx_lm": "0.31"}, "VersionDiffers", "mlx-lm 0.31, rank 0 runs 0.32.2"),
        ({"digest": "abd"}, "ModelDiffers", "is not the one on studio-0"),
    ],
)
def test_refusals_say_what_is_wrong(rendezvous: Rendezvous, changes: dict[str, Any], reason: str, words: str) -> None:
    after, refusal = rendezvous.claim(hello(**changes))
    assert refusal is not None
    assert refusal.reason == reason
    assert words in refusal.message
    assert after.present == rendezvous.present


def test_a_second_claimant_does_not_disturb_the_first(rendezvous: Rendezvous) -> None:
    first, _ = rendezvous.claim(hello())
    second, refusal = first.claim(hello())
    assert refusal is not None
    assert refusal.reason == "RankTaken"
    assert second == first


def test_a_refusal_is_remembered_until_the_rank_comes_right(rendezvous: Rendezvous) -> None:
    refused, _ = rendezvous.claim(hello(epoch=2))
    assert refused.refusals == {1: "StaleEpoch: epoch 2 is stale, rank 0 is in epoch 3"}
    assert refused.claim(hello())[0].refusals == {}


def test_a_model_that_cannot_be_read_yet_is_judged_later(rendezvous: Rendezvous) -> None:
    assert rendezvous.claim(hello(digest=""))[1] is None
