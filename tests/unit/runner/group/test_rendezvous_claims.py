"""Which supervisors may join, and the message for the others."""

from collections.abc import Callable
from typing import Any

import pytest
from thunderfleet_runner.group.decide.rendezvous import Identity, Rendezvous
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


SET = {"MLX_MAX_OPS_PER_BUFFER": "50"}


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (
            {},
            SET,
            'MLX_MAX_OPS_PER_BUFFER is not set on studio-0 (rank 0) and "50" on studio-1 (rank 1): set it in spec.runtime',
        ),
        (
            SET,
            {},
            'MLX_MAX_OPS_PER_BUFFER is "50" on studio-0 (rank 0) and not set on studio-1 (rank 1): set it in spec.runtime',
        ),
        (SET, {**SET, "MLX_DISABLE_COMPILE": ""}, 'MLX_DISABLE_COMPILE is not set on studio-0 (rank 0) and "" on studio-1'),
        (
            {"MLX_BFS_MAX_WIDTH": "20"},
            {"MLX_BFS_MAX_WIDTH": "2" * 100, "MLX_MAX_MB_PER_BUFFER": "1"},
            f'is "20" on studio-0 (rank 0) and "{"2" * 64}" on studio-1 (rank 1); MLX_MAX_MB_PER_BUFFER is not set on studio-0',
        ),
    ],
)
def test_a_rank_whose_mlx_has_other_settings_is_refused_with_both_values(
    make_group: Callable[..., Any], ours: dict[str, str], theirs: dict[str, str], words: str
) -> None:
    made = Rendezvous(make_group(3).plan, Identity("0.32.4", "0.32.2", "abc", ours), frozenset({0}))
    after, refusal = made.claim(hello(environment=theirs))
    assert refusal is not None and refusal.reason == "EnvironmentDiffers"
    assert words in refusal.message
    assert after.refusals == {1: f"EnvironmentDiffers: {refusal.message}"}


@pytest.mark.parametrize("theirs", [SET, None], ids=["the same", "of an earlier version, which does not tell"])
def test_equal_settings_and_unknown_ones_are_let_in(make_group: Callable[..., Any], theirs: dict[str, str] | None) -> None:
    made = Rendezvous(make_group(3).plan, Identity("0.32.4", "0.32.2", "abc", SET), frozenset({0}))
    assert made.claim(hello(environment=theirs))[1] is None


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
